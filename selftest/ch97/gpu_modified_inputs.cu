// SPDX-License-Identifier: Apache-2.0
// Changes its input after it has used it.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuModifiedInputs final : public selftest::GpuDoubling {
 public:
  explicit GpuModifiedInputs(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    check(cudaMemsetAsync(const_cast<float*>(in_.get()) + 7, 0, sizeof(float), launch.stream));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_modified_inputs{
    .expected = {selftest::Ends::failed, "verify", "inputs_unchanged"},
    .pair =
        {
            .teaches = "changes its input after it has used it",
            .make = make<GpuModifiedInputs>,
            .baseline = {"slow", call<&GpuModifiedInputs::baseline>},
            .optimized = variants({{"doubled", call<&GpuModifiedInputs::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
