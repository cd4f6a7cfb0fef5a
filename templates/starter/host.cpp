// SPDX-License-Identifier: Apache-2.0
// Say here what the pair is about: what its baseline waits for, and what the other variants do about that.
#include <aisp/pair.hpp>

namespace aisp::starter {
namespace {

constexpr std::size_t columns = 4096;

class Work final : public Workload {
 public:
  explicit Work(Setup& setup)
      : rows_{setup.scaled(1024)}, in_{setup.input<float>(rows_ * columns, uniform(-1, 1))}, out_{setup.output<float>(rows_)} {}

  // The least that any variant must do: every input read once, every output written once.
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += in_.host(row * columns + c);
    return sum;
  }

  void baseline(Launch&) {
    for (std::size_t row = 0; row < rows_; ++row) {
      float sum = 0;
      for (std::size_t c = 0; c < columns; ++c) sum += in_[row * columns + c];
      out_[row] = sum;
    }
  }
  // Eight sums, so that an addition need not wait for the one before it.
  void optimized(Launch&) {
    for (std::size_t row = 0; row < rows_; ++row) {
      float sums[8] = {};
      for (std::size_t c = 0; c < columns; c += 8)
        for (std::size_t k = 0; k < 8; ++k) sums[k] += in_[row * columns + c + k];
      out_[row] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
  }

 private:
  std::size_t rows_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair host{
    .teaches = "say here in one sentence what the pair shows",
    .make = make<Work>,
    .baseline = {.name = "one_sum", .run = call<&Work::baseline>},
    .optimized = variants({{.name = "eight_sums", .run = call<&Work::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = reduction_of(columns),
};

}  // namespace aisp::starter
