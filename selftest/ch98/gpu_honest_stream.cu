// SPDX-License-Identifier: Apache-2.0
// An honest pair that works on a stream of its own, forked and joined.
#include "../doubling.cuh"

namespace aisp::ch98 {
namespace {

class GpuHonestStream final : public selftest::GpuDoubling {
 public:
  void baseline(Launch& launch) { slow(launch); }
  explicit GpuHonestStream(Setup& setup)
      : GpuDoubling{setup}, other_{setup.stream()}, forked_{setup.event()}, joined_{setup.event()} {}
  void optimized(Launch& launch) {
    check(cudaEventRecord(forked_, launch.stream));
    check(cudaStreamWaitEvent(other_, forked_));
    double_on(other_, count_);
    check(cudaEventRecord(joined_, other_));
    check(cudaStreamWaitEvent(launch.stream, joined_));
  }

 private:
  cudaStream_t other_;
  cudaEvent_t forked_, joined_;
};

}  // namespace

extern constinit const selftest::Case gpu_honest_stream{
    .pair =
        {
            .teaches = "an honest pair that works on a stream of its own, forked and joined",
            .make = make<GpuHonestStream>,
            .baseline = {"slow", call<&GpuHonestStream::baseline>},
            .optimized = variants({{"doubled", call<&GpuHonestStream::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch98
