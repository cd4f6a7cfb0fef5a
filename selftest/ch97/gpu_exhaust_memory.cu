// SPDX-License-Identifier: Apache-2.0
// Asks for device memory until there is none.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuExhaustMemory final : public selftest::GpuDoubling {
 public:
  explicit GpuExhaustMemory(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch&) {
    void* hoard = nullptr;
    for (;;) check(cudaMalloc(&hoard, std::size_t{1} << 30));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_exhaust_memory{
    .expected = {selftest::Ends::failed, "verify", "cuda"},
    .pair =
        {
            .teaches = "asks for device memory until there is none",
            .make = make<GpuExhaustMemory>,
            .baseline = {"slow", call<&GpuExhaustMemory::baseline>},
            .optimized = variants({{"doubled", call<&GpuExhaustMemory::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
