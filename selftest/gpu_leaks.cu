// SPDX-License-Identifier: Apache-2.0
// They leave device memory behind.
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

class Leaks final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void memory(Launch& launch) {
    void* lost = nullptr;
    check(cudaMalloc(&lost, std::size_t{8} << 20));
    doubled(launch);
  }
  // Too little for the driver's account to show it.
  void pool(Launch& launch) {
    void* lost = nullptr;
    check(cudaMallocAsync(&lost, std::size_t{4} << 10, launch.stream));
    doubled(launch);
  }
};

}  // namespace

extern constinit const selftest::Case gpu_leak_memory =
    pair_of<&Leaks::memory>({.does = "forgets 8 MiB of device memory at every execution", .must = fails("verify/memory")});
extern constinit const selftest::Case gpu_leak_pool =
    pair_of<&Leaks::pool>({.does = "forgets 4 KiB of a memory pool at every execution", .must = fails("verify/memory")});

}  // namespace aisp::ch97
