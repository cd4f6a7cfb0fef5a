// SPDX-License-Identifier: Apache-2.0
// Has the CPU work in a callback that it does not declare.
#include "../doubling.cuh"

#include <atomic>

namespace aisp::ch97 {
namespace {

class GpuHostCallback final : public selftest::GpuDoubling {
 public:
  explicit GpuHostCallback(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    doubled(launch);
    check(cudaLaunchHostFunc(
        launch.stream, [](void* work) { ++*static_cast<std::atomic<int>*>(work); }, &done_by_the_cpu_));
  }

 private:
  std::atomic<int> done_by_the_cpu_{0};
};

}  // namespace

extern constinit const selftest::Case gpu_host_callback{
    .expected = {selftest::Ends::failed, "audit", "hidden_work"},
    .needs_cupti = true,
    .pair =
        {
            .teaches = "has the CPU work in a callback that it does not declare",
            .make = make<GpuHostCallback>,
            .baseline = {"slow", call<&GpuHostCallback::baseline>},
            .optimized = variants({{"doubled", call<&GpuHostCallback::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
