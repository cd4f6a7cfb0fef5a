// SPDX-License-Identifier: Apache-2.0
// Two of four elements behind the last full step: at the size that is timed there are none, at one edge there are three.
#include <aisp/pair.hpp>

namespace aisp::ch88 {
namespace {

class TailAtEdge final : public Workload {
 public:
  explicit TailAtEdge(Setup& setup)
      : count_{setup.size("n")},
        in_{setup.input<float>(count_, uniform(-1, 1))},
        out_{setup.output<float>(count_, {.name = "out"})} {}

  Cost cost() const override { return {.host_bytes = 8.0 * static_cast<double>(count_)}; }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }

  void plain(Launch&) { from(0); }
  void right(Launch&) { from(by_four()); }
  void forgetful(Launch&) {
    const std::size_t done = by_four();
    for (std::size_t i = done; i < count_ && i < done + 2; ++i) out_[i] = 2 * in_[i];
  }

 private:
  std::size_t by_four() {
    const std::size_t done = count_ / 4 * 4;
    for (std::size_t i = 0; i < done; i += 4)
      for (std::size_t k = i; k < i + 4; ++k) out_[k] = 2 * in_[k];
    return done;
  }
  void from(std::size_t first) {
    for (std::size_t i = first; i < count_; ++i) out_[i] = 2 * in_[i];
  }

  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair tail_at_edge{
    .teaches = "what the timed size never shows is found at the edges",
    .lesson = "right",
    .make = make<TailAtEdge>,
    .baseline = {.name = "plain", .run = call<&TailAtEdge::plain>},
    .optimized = variants({{.name = "right", .run = call<&TailAtEdge::right>, .same_bits_as = "plain"},
                           {.name = "forgetful", .run = call<&TailAtEdge::forgetful>}}),
    .device = Device::host,
    .bound = Bound::host,
    .sizes = sizes({{.name = "n", .full = 8192, .least = 0}}),
    .edges = cases({{"empty", "n=0"}, {"one", "n=1"}, {"three_left", "n=1023"}, {"four", "n=4"}}),
};

}  // namespace aisp::ch88
