// SPDX-License-Identifier: Apache-2.0
// Writes zeros.
#include "../doubling.cuh"

namespace aisp::ch97 {
namespace {

class GpuZeros final : public selftest::GpuDoubling {
 public:
  explicit GpuZeros(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { check(cudaMemsetAsync(out_, 0, out_.bytes(), launch.stream)); }
};

}  // namespace

extern constinit const selftest::Case gpu_zeros{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "writes zeros",
            .make = make<GpuZeros>,
            .baseline = {"slow", call<&GpuZeros::baseline>},
            .optimized = variants({{"doubled", call<&GpuZeros::optimized>}}),
            .tolerance = exact,
        },
};

}  // namespace aisp::ch97
