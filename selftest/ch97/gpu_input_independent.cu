// SPDX-License-Identifier: Apache-2.0
// Baseline and variant agree with each other, and neither looks at its input.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuInputIndependent final : public selftest::GpuDoubling {
 public:
  explicit GpuInputIndependent(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { set(0, 3, count_, launch.stream); }
  void optimized(Launch& launch) { set(0, 3, count_, launch.stream); }
  double expected(std::size_t) const override { return 3; }
};

}  // namespace

extern constinit const selftest::Case gpu_input_independent{
    .expected = {selftest::Ends::failed, "reverify", "depends_on_inputs"},
    .pair =
        {
            .teaches = "baseline and variant agree with each other, and neither looks at its input",
            .make = make<GpuInputIndependent>,
            .baseline = {"slow", call<&GpuInputIndependent::baseline>},
            .optimized = variants({{"doubled", call<&GpuInputIndependent::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
