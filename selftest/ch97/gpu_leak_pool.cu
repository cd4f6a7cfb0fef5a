// SPDX-License-Identifier: Apache-2.0
// Forgets 4 KiB of cudaMallocAsync's pool at every execution: too little for the driver's account to show it.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuLeakPool final : public selftest::GpuDoubling {
 public:
  explicit GpuLeakPool(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    void* lost = nullptr;
    check(cudaMallocAsync(&lost, std::size_t{4} << 10, launch.stream));
    doubled(launch);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_leak_pool{
    .expected = {selftest::Ends::failed, "verify", "memory"},
    .pair =
        {
            .teaches = "forgets 4 KiB of a memory pool at every execution",
            .make = make<GpuLeakPool>,
            .baseline = {"slow", call<&GpuLeakPool::baseline>},
            .optimized = variants({{"doubled", call<&GpuLeakPool::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
