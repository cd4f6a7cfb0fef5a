// SPDX-License-Identifier: Apache-2.0
// An honest pair with everything that can be said of its outputs: edges, equal bits, groups, a tolerance for each output, and
// codes that may be a step away.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

namespace aisp::ch90 {
namespace {

class Edged final : public Workload {
 public:
  explicit Edged(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        in_{setup.input<float>(rows_ * columns_, normal(0, 1).times(1, 100, drawn(Axis{1, columns_}, 4)))},
        sums_{setup.output<float>(rows_, {.name = "sums"})},
        doubled_{setup.output<float>(rows_ * columns_, {.name = "doubled", .groups = {columns_, rows_}})},
        codes_{setup.output<std::int8_t>(rows_ * columns_, {.name = "codes"})} {}

  Cost cost() const override { return {.host_bytes = 9.0 * static_cast<double>(rows_ * columns_)}; }
  double expected_output(int output, std::size_t index) const override {
    if (output == 1) return 2 * in_.host(index);
    if (output == 2) return std::clamp(std::nearbyint(4 * in_.host(index)), -128.0, 127.0);
    double sum = 0;
    for (std::size_t c = 0; c < columns_; ++c) sum += std::abs(in_.host(index * columns_ + c));
    return sum;
  }

  void twice(Launch& launch) {
    once(launch);
    once(launch);
  }
  void once(Launch&) {
    for (std::size_t row = 0; row < rows_; ++row) {
      float sum = 0;
      for (std::size_t c = 0; c < columns_; ++c) {
        const float value = in_[row * columns_ + c];
        sum += std::abs(value);  // a lone row whose terms cancel has no error to speak of that is relative to it
        doubled_[row * columns_ + c] = 2 * value;
        codes_[row * columns_ + c] = static_cast<std::int8_t>(std::clamp(std::nearbyint(4 * value), -128.0f, 127.0f));
      }
      sums_[row] = sum;
    }
  }

 private:
  std::size_t rows_, columns_;
  Input<float> in_;
  Output<float> sums_, doubled_;
  Output<std::int8_t> codes_;
};

}  // namespace

extern constinit const Pair edged{
    .teaches = "what is verified can be said of each output",
    .make = make<Edged>,
    .baseline = {.name = "twice", .run = call<&Edged::twice>},
    .optimized = variants({{.name = "once", .run = call<&Edged::once>, .same_bits_as = "twice"}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = per_output({reduction_of(256), exact, within_steps(1, 0.01)}),
    .sizes = sizes({{.name = "rows", .full = 512, .least = 0}, {.name = "columns", .full = 256}}),
    .edges = cases({{"empty", "rows=0"}, {"one_row", "rows=1"}, {"narrow", "rows=3,columns=7"}}),
};

}  // namespace aisp::ch90
