// SPDX-License-Identifier: Apache-2.0
// Computes in bf16 and says float.
#include "../doubling.cuh"

#include <cuda_bf16.h>

namespace aisp::ch97 {
namespace {

__global__ void rough_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * __bfloat162float(__float2bfloat16(in[i]));
}

class GpuLowerPrecision final : public selftest::GpuDoubling {
 public:
  explicit GpuLowerPrecision(Setup& setup) : GpuDoubling{setup} {}
  void baseline(Launch& launch) { slow(launch); }
  void optimized(Launch& launch) { rough_kernel<<<blocks(), selftest::block_threads, 0, launch.stream>>>(in_, out_, count_); }
};

}  // namespace

extern constinit const selftest::Case gpu_lower_precision{
    .expected = {selftest::Ends::failed, "verify", "reference"},
    .pair =
        {
            .teaches = "computes in bf16 and says float",
            .make = make<GpuLowerPrecision>,
            .baseline = {"slow", call<&GpuLowerPrecision::baseline>},
            .optimized = variants({{"doubled", call<&GpuLowerPrecision::optimized>}}),
        },
};

}  // namespace aisp::ch97
