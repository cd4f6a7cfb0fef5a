// SPDX-License-Identifier: Apache-2.0
// Their work, or a part of it, lies outside of the timed window.
#include "doubling.cuh"

#include <atomic>

namespace aisp::ch97 {
namespace {

using namespace selftest;

class Outside final : public GpuDoubling {
 public:
  explicit Outside(Setup& setup) : GpuDoubling{setup}, other_{setup.stream()} {}
  void on_the_default_stream(Launch&) {
    spin(20'000'000, nullptr);
    double_on(nullptr, count_);
  }
  void on_a_hidden_stream(Launch&) {
    spin(20'000'000, other_);
    double_on(other_, count_);
  }
  void for_long(Launch& launch) {
    spin(3'000'000, other_);
    doubled(launch);
  }
  // Too short for a host clock to see.
  void for_a_moment(Launch& launch) {
    spin(150'000, other_);
    doubled(launch);
  }
  void in_a_callback(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(
        launch.stream, [](void* work) { ++*static_cast<std::atomic<int>*>(work); }, &done_by_the_cpu_));
  }

 private:
  cudaStream_t other_;
  std::atomic<int> done_by_the_cpu_{0};
};

}  // namespace

extern constinit const selftest::Case gpu_default_stream = pair_of<&Outside::on_the_default_stream>(
    {.does = "forgets the stream argument of its kernels", .must = fails("verify/finished")});
extern constinit const selftest::Case gpu_hidden_stream = pair_of<&Outside::on_a_hidden_stream>(
    {.does = "computes on a stream of its own and does not join it", .must = fails("verify/finished")});
extern constinit const selftest::Case gpu_late_work = pair_of<&Outside::for_long>(
    {.does = "goes on for 3 ms on another stream after the end of the sample", .must = fails("audit/late_work")});
extern constinit const selftest::Case gpu_short_late_work =
    pair_of<&Outside::for_a_moment>({.does = "goes on for 0.1 ms on another stream, too short for a host clock to see",
                                     .must = fails("audit/hidden_work"),
                                     .needs_cupti = true});
extern constinit const selftest::Case gpu_host_callback = pair_of<&Outside::in_a_callback>(
    {.does = "has the CPU work in a callback that it does not declare", .must = fails("audit/hidden_work"), .needs_cupti = true});

}  // namespace aisp::ch97
