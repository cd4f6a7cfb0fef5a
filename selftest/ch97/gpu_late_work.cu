// SPDX-License-Identifier: Apache-2.0
// Goes on for 3 ms on another stream after the end of the sample.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuLateWork final : public selftest::GpuDoubling {
 public:
  void baseline(Launch& launch) { slow(launch); }
  explicit GpuLateWork(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()} {}
  void optimized(Launch& launch) {
    spin(3'000'000, other_);
    doubled(launch);
  }

 private:
  cudaStream_t other_;
};

}  // namespace

extern constinit const selftest::Case gpu_late_work{
    .expected = {selftest::Ends::failed, "audit", "late_work"},
    .pair =
        {
            .teaches = "goes on for 3 ms on another stream after the end of the sample",
            .make = make<GpuLateWork>,
            .baseline = {"slow", call<&GpuLateWork::baseline>},
            .optimized = variants({{"doubled", call<&GpuLateWork::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
