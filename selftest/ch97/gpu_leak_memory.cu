// SPDX-License-Identifier: Apache-2.0
// Forgets 8 MiB of device memory at every execution.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuLeakMemory final : public selftest::GpuDoubling {
 public:
  explicit GpuLeakMemory(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) {
    void* lost = nullptr;
    check(cudaMalloc(&lost, std::size_t{8} << 20));
    doubled(launch);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_leak_memory{
    .expected = {selftest::Ends::failed, "verify", "memory"},
    .pair =
        {
            .teaches = "forgets 8 MiB of device memory at every execution",
            .make = make<GpuLeakMemory>,
            .baseline = {"slow", call<&GpuLeakMemory::baseline>},
            .optimized = variants({{"doubled", call<&GpuLeakMemory::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
