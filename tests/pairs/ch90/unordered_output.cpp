// SPDX-License-Identifier: Apache-2.0
// The optimized variant writes its output in another order, which the pair allows.
#include "../doubling.hpp"

#include <algorithm>
#include <vector>

namespace aisp::ch90 {
namespace {

class UnorderedOutput final : public Workload {
 public:
  explicit UnorderedOutput(Setup& setup)
      : count_{setup.scaled(64 * 1024, 64)},
        in_{setup.input<float>(count_, uniform(-1, 1))},
        any_{setup.output<float>(count_, {.unordered = true})} {}

  void baseline(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count_; ++i) any_[i] = in_.get()[i];
  }
  void optimized(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) any_[count_ - 1 - i] = in_.get()[i];
  }
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + any_.bytes())}; }
  void compute_reference(Launch&) override {
    sorted_.resize(count_);
    for (std::size_t i = 0; i < count_; ++i) sorted_[i] = in_.host(i);
    std::sort(sorted_.begin(), sorted_.end());
  }
  double expected(std::size_t index) const override { return sorted_[index]; }

 private:
  std::size_t count_;
  Input<float> in_;
  Output<float> any_;
  std::vector<double> sorted_;
};

}  // namespace

extern constinit const Pair unordered_output{
    .teaches = "the optimized variant writes its output in another order, which the pair allows",
    .make = make<UnorderedOutput>,
    .baseline = {"slow", call<&UnorderedOutput::baseline>},
    .optimized = variants({{"doubled", call<&UnorderedOutput::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
};

}  // namespace aisp::ch90
