// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a GroupNorm over an SDXL feature map: moments of values in registers, how they merge, and the normalization.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/device/vector.cuh>

#include <cuda_bf16.h>

namespace aisp::ch10::group_norm {

using bf16 = __nv_bfloat16;
using Eight = device::Vector16<unsigned>;  // eight bf16 in four registers, the first in the lower half of a word
constexpr int channels = 320, groups_per_image = 32, channels_per_group = channels / groups_per_image;
constexpr int pixels = 128 * 128, group_elements = channels_per_group * pixels;
constexpr int group_vectors = group_elements / 8, channel_vectors = pixels / 8;
constexpr float epsilon = 1e-5f;

__device__ inline float2 widened(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// Mean, and sum of squared deviations from it, of some number of values.
struct Moments {
  float mean, squares;
};

// Both of `count` values.
__device__ inline Moments merge(Moments a, Moments b, float count) {
  const float distance = b.mean - a.mean;
  return {(a.mean + b.mean) / 2, a.squares + b.squares + distance * distance * count / 2};
}

// Over `lanes` neighbouring lanes, each with `count` values.
template <int lanes>
__device__ Moments merge_lanes(Moments moments, float count) {
#pragma unroll
  for (int offset = 1; offset < lanes; offset *= 2, count *= 2)
    moments = merge(moments, {__shfl_xor_sync(~0u, moments.mean, offset), __shfl_xor_sync(~0u, moments.squares, offset)}, count);
  return moments;
}

// Distances from one of the values keep their digits, however far from zero all of them are.
template <int vectors>
__device__ Moments moments_of(const Eight (&values)[vectors]) {
  const float origin = widened(values[0][0]).x;
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < vectors; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = widened(values[k][i]);
      const float low = pair.x - origin, high = pair.y - origin;
      sum += low + high;
      squares = fmaf(low, low, fmaf(high, high, squares));
    }
  const float mean = sum / (vectors * 8);
  return {origin + mean, squares - sum * mean};
}

__device__ inline float inverse_deviation(Moments group) { return rsqrtf(group.squares / group_elements + epsilon); }

__device__ inline Eight normalized(const Eight& values, float scale, float shift) {
  Eight result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widened(values[i]);
    result[i] = device::narrow_bf16(fmaf(pair.x, scale, shift), fmaf(pair.y, scale, shift));
  }
  return result;
}

}  // namespace aisp::ch10::group_norm
