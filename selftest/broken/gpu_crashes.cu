// SPDX-License-Identifier: Apache-2.0
// They keep the GPU for ever, stop it or take all of its memory.
#include "doubling.cuh"

namespace aisp::ch97 {
namespace {

using namespace selftest;

__global__ void wild_kernel(std::uintptr_t address) { *reinterpret_cast<volatile int*>(address) = 1; }
__global__ void trap_kernel() { __trap(); }

class Crashes final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void spinning(Launch& launch) { spin(120'000'000'000ull, launch.stream); }
  void hoarding(Launch&) {
    void* hoard = nullptr;
    for (;;) check(cudaMalloc(&hoard, std::size_t{1} << 30));
  }
  void writing_wildly(Launch& launch) { wild_kernel<<<1, 1, 0, launch.stream>>>(16); }
  void trapping(Launch& launch) { trap_kernel<<<1, 1, 0, launch.stream>>>(); }
};

}  // namespace

extern constinit const selftest::Case gpu_hang =
    pair_of<&Crashes::spinning>({.does = "keeps the GPU busy for two minutes", .must = hangs("verify/stage_limit", 3)});
extern constinit const selftest::Case gpu_exhaust_memory =
    pair_of<&Crashes::hoarding>({.does = "asks for device memory until there is none", .must = fails("verify/cuda")});
extern constinit const selftest::Case gpu_illegal_address =
    pair_of<&Crashes::writing_wildly>({.does = "writes through a wild pointer", .must = fails("verify/cuda")});
extern constinit const selftest::Case gpu_trap = pair_of<&Crashes::trapping>(
    {.does = "stops its kernel with a trap, as a failed assertion does", .must = fails("verify/cuda")});

}  // namespace aisp::ch97
