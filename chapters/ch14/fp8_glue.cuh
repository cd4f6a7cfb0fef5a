// SPDX-License-Identifier: Apache-2.0
// Shared by kernels around an FP8 product, those built beforehand and those written at run time: rows of bf16 become e4m3 with a
// scale for each row.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>

#include "rows.cuh"

namespace aisp::ch14 {

using shared::bf16, shared::packet;
constexpr float largest_e4m3 = 448, norm_epsilon = 1e-6f;

__device__ __forceinline__ uint2 pack_e4m3(const float (&x)[packet], float by) {
  return make_uint2(device::narrow_e4m3(x[0] * by, x[1] * by) | device::narrow_e4m3(x[2] * by, x[3] * by) << 16,
                    device::narrow_e4m3(x[4] * by, x[5] * by) | device::narrow_e4m3(x[6] * by, x[7] * by) << 16);
}
__device__ __forceinline__ float inverse_rms(float sum_of_squares, unsigned columns) {
  return rsqrtf(sum_of_squares / static_cast<float>(columns) + norm_epsilon);
}
__device__ __forceinline__ float largest_magnitude(const float (&x)[packet]) {
  float largest = 0;
#pragma unroll
  for (int k = 0; k < packet; ++k) largest = fmaxf(largest, fabsf(x[k]));
  return largest;
}
// Returns a row's divisor, so that its largest element becomes the type's largest; and its inverse, 0 for a row of zeros.
__device__ __forceinline__ float row_scale(float largest) { return largest > 0 ? largest / largest_e4m3 : 1; }
__device__ __forceinline__ float quantizing_factor(float largest) { return largest > 0 ? largest_e4m3 / largest : 0; }

}  // namespace aisp::ch14
