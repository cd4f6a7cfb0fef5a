// SPDX-License-Identifier: Apache-2.0
// Baseline and variant agree with each other, and neither looks at its input.
#include "../doubling.hpp"

namespace aisp::ch94 {
namespace {

class InputIndependent final : public selftest::Doubling {
 public:
  explicit InputIndependent(Setup& setup) : Doubling{setup} {}
  void baseline(Launch&) { same_as_ever(); }
  void optimized(Launch&) { same_as_ever(); }
  double expected(std::size_t) const override { return 3; }

 private:
  void same_as_ever() {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 3;
  }
};

}  // namespace

extern constinit const selftest::Case input_independent{
    .expected = {selftest::Ends::failed, "reverify", "depends_on_inputs"},
    .pair =
        {
            .teaches = "baseline and variant agree with each other, and neither looks at its input",
            .make = make<InputIndependent>,
            .baseline = {"slow", call<&InputIndependent::baseline>},
            .optimized = variants({{"doubled", call<&InputIndependent::optimized>}}),
            .device = Device::host,
            .bound = Bound::host,
            .tolerance = exact,
        },
};

}  // namespace aisp::ch94
