// SPDX-License-Identifier: Apache-2.0
// One element is not a number.
#include "../doubling.cuh"

#include <limits>

namespace aisp::ch97 {
namespace {

class GpuNanOutput final : public selftest::GpuDoubling {
 public:
  explicit GpuNanOutput(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    set(count_ / 2, std::numeric_limits<float>::quiet_NaN(), 1, launch.stream);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_nan_output{
    .expected = {selftest::Ends::failed, "verify", "finite"},
    .pair =
        {
            .teaches = "one element is not a number",
            .make = make<GpuNanOutput>,
            .baseline = {"slow", call<&GpuNanOutput::baseline>},
            .optimized = variants({{"doubled", call<&GpuNanOutput::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
