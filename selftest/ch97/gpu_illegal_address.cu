// SPDX-License-Identifier: Apache-2.0
// Writes through a wild pointer.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

__global__ void wild_kernel(std::uintptr_t address) { *reinterpret_cast<volatile int*>(address) = 1; }

class GpuIllegalAddress final : public selftest::GpuDoubling {
 public:
  explicit GpuIllegalAddress(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { wild_kernel<<<1, 1, 0, launch.stream>>>(16); }
};

}  // namespace

extern constinit const selftest::Case gpu_illegal_address{
    .expected = {selftest::Ends::failed, "verify", "cuda"},
    .pair =
        {
            .teaches = "writes through a wild pointer",
            .make = make<GpuIllegalAddress>,
            .baseline = {"slow", call<&GpuIllegalAddress::baseline>},
            .optimized = variants({{"doubled", call<&GpuIllegalAddress::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
