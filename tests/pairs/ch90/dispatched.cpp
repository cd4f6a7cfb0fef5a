// SPDX-License-Identifier: Apache-2.0
// A size for which code is compiled: three of its values are, and any other is refused when a variant runs.
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <type_traits>

namespace aisp::ch90 {
namespace {

constexpr std::size_t sums = 1 << 14;

class Dispatched final : public Workload {
 public:
  explicit Dispatched(Setup& setup)
      : width_{setup.size("width")},
        in_{setup.input<float>(sums * width_, uniform(-4, 4).on_grid(0.25f))},
        out_{setup.output<float>(sums)} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(in_.size()), .host_bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    double sum = 0;
    for (std::size_t k = 0; k < width_; ++k) sum += in_.host(i * width_ + k);
    return sum;
  }

  void slow(Launch&) {
    for (int pass = 0; pass < 16; ++pass)
      for (std::size_t i = 0; i < sums; ++i) {
        volatile float sum = 0;
        for (std::size_t k = width_; k-- > 0;) sum = sum + in_.get()[i * width_ + k];
        out_[i] = sum;
      }
  }
  void looped(Launch&) { add_up(width_); }
  void unrolled(Launch&) {
    dispatch<4, 8, 16>("width", width_, [&]<std::size_t width>() { add_up(std::integral_constant<std::size_t, width>{}); });
  }

 private:
  template <class Width>
  void add_up(Width width) {
    for (std::size_t i = 0; i < sums; ++i) {
      float sum = 0;
      for (std::size_t k = 0; k < width; ++k) sum += in_.get()[i * width + k];
      out_[i] = sum;
    }
  }

  std::size_t width_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair dispatched{
    .teaches = "code is compiled for some values of a size, and skipped for any other",
    .lesson = "looped",
    .make = make<Dispatched>,
    .baseline = {"slow", call<&Dispatched::slow>},
    .optimized = variants({{"looped", call<&Dispatched::looped>}, {"unrolled", call<&Dispatched::unrolled>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,  // sums of values on a grid, in any order
    .sizes = sizes({{.name = "width", .full = 8, .least = 4, .most = 16, .scales = false}}),
};

}  // namespace aisp::ch90
