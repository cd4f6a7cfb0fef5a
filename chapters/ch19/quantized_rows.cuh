// SPDX-License-Identifier: Apache-2.0
// Shared by the quantizing kernels of this chapter: eight elements of bf16, as fp32 in registers, become narrow codes.
#pragma once
#include <cuda_fp8.h>
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>

#include "rows.cuh"

namespace aisp::ch19 {

inline constexpr float largest_e4m3 = 448;

__device__ __forceinline__ float largest_magnitude(const float (&x)[shared::packet]) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < shared::packet; ++k) largest = fmaxf(largest, fabsf(x[k]));
  return largest;
}

// Packs with saturation: values that are too large become 448.
__device__ __forceinline__ uint2 pack_e4m3(const float (&x)[shared::packet], float by) {
  return make_uint2(device::narrow_e4m3(x[0] * by, x[1] * by) | device::narrow_e4m3(x[2] * by, x[3] * by) << 16,
                    device::narrow_e4m3(x[4] * by, x[5] * by) | device::narrow_e4m3(x[6] * by, x[7] * by) << 16);
}

}  // namespace aisp::ch19
