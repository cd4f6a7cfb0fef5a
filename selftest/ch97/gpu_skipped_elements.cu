// SPDX-License-Identifier: Apache-2.0
// Leaves the last thousand elements out.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuSkippedElements final : public selftest::GpuDoubling {
 public:
  explicit GpuSkippedElements(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { double_on(launch.stream, count_ - 1000); }
};

}  // namespace

extern constinit const selftest::Case gpu_skipped_elements{
    .expected = {selftest::Ends::failed, "verify", "written"},
    .pair =
        {
            .teaches = "leaves the last thousand elements out",
            .make = make<GpuSkippedElements>,
            .baseline = {"slow", call<&GpuSkippedElements::baseline>},
            .optimized = variants({{"doubled", call<&GpuSkippedElements::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
