// SPDX-License-Identifier: Apache-2.0
// Honest pairs of which nothing may be said.
#include "doubling.cuh"

namespace aisp::ch98 {
namespace {

using namespace selftest;

class Forks final : public GpuDoubling {
 public:
  explicit Forks(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()}, forked_{setup.event()}, joined_{setup.event()} {}
  void and_joins(Launch& launch) {
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

class CallsBack final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void run(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(
        launch.stream, [](void*) {}, nullptr));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_honest = pair_of<&GpuDoubling::doubled>({.does = "an honest pair"});
extern constinit const selftest::Case gpu_honest_stream =
    pair_of<&Forks::and_joins>({.does = "works on a stream of its own, forked and joined"});
extern constinit const selftest::Case gpu_honest_callback =
    pair_of<&CallsBack::run>({.does = "declares its host callback", .host_callbacks = true});

}  // namespace aisp::ch98
