// SPDX-License-Identifier: Apache-2.0
// One of two pairs in one chapter whose classes and methods have equal names: it takes twice the input.
#include <aisp/pair.hpp>

namespace aisp::ch88 {
namespace {

class Times final : public Workload {
 public:
  explicit Times(Setup& setup) : in_{setup.input<float>(count, uniform(-1, 1))}, out_{setup.output<float>(count)} {}
  Cost cost() const override { return {.flops = count, .host_bytes = 8 * count}; }
  double expected(std::size_t index) const override { return 2 * in_.host(index); }

  void slow(Launch& launch) {
    for (int pass = 0; pass < 8; ++pass) quick(launch);
  }
  void quick(Launch&) {
    for (std::size_t i = 0; i < count; ++i) {
      volatile float value = in_.get()[i];
      out_[i] = 2 * value;
    }
  }

 private:
  static constexpr std::size_t count = std::size_t{1} << 14;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair two_times{
    .teaches = "its class and methods are called like another pair's, and do something else",
    .make = make<Times>,
    .baseline = {"slow", call<&Times::slow>},
    .optimized = variants({{"quick", call<&Times::quick>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch88
