// SPDX-License-Identifier: Apache-2.0
// Does the measured work in reset, and nothing when measured.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuWorkInReset final : public selftest::GpuDoubling {
 public:
  explicit GpuWorkInReset(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void reset(Launch& launch) { doubled(launch); }
  void optimized(Launch&) {}
};

}  // namespace

extern constinit const selftest::Case gpu_work_in_reset{
    .expected = {selftest::Ends::failed, "verify", "written"},
    .pair =
        {
            .teaches = "does the measured work in reset, and nothing when measured",
            .make = make<GpuWorkInReset>,
            .baseline = {"slow", call<&GpuWorkInReset::baseline>},
            .optimized =
                variants({{.name = "doubled", .run = call<&GpuWorkInReset::optimized>, .reset = call<&GpuWorkInReset::reset>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
