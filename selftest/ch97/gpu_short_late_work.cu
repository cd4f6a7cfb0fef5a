// SPDX-License-Identifier: Apache-2.0
// Goes on for 0.1 ms on another stream, too short for a host clock to see.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuShortLateWork final : public selftest::GpuDoubling {
 public:
  void baseline(Launch& launch) { slow(launch); }
  explicit GpuShortLateWork(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()} {}
  void optimized(Launch& launch) {
    spin(150'000, other_);
    doubled(launch);
  }

 private:
  cudaStream_t other_;
};

}  // namespace

extern constinit const selftest::Case gpu_short_late_work{
    .expected = {selftest::Ends::failed, "audit", "hidden_work"},
    .needs_cupti = true,
    .pair =
        {
            .teaches = "goes on for 0.1 ms on another stream, too short for a host clock to see",
            .make = make<GpuShortLateWork>,
            .baseline = {"slow", call<&GpuShortLateWork::baseline>},
            .optimized = variants({{"doubled", call<&GpuShortLateWork::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
