// SPDX-License-Identifier: Apache-2.0
// Stops its kernel with a trap, as a failed assertion does.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

__global__ void trap_kernel() { __trap(); }

class GpuTrap final : public selftest::GpuDoubling {
 public:
  explicit GpuTrap(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { trap_kernel<<<1, 1, 0, launch.stream>>>(); }
};

}  // namespace

extern constinit const selftest::Case gpu_trap{
    .expected = {selftest::Ends::failed, "verify", "cuda"},
    .pair =
        {
            .teaches = "stops its kernel with a trap, as a failed assertion does",
            .make = make<GpuTrap>,
            .baseline = {"slow", call<&GpuTrap::baseline>},
            .optimized = variants({{"doubled", call<&GpuTrap::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
