// SPDX-License-Identifier: Apache-2.0
// Shared by kernels over rows of bf16: eight elements in 16 bytes, as fp32 in registers and back, and the running maximum and sum
// of a softmax.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/exponential.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/reduce.cuh>

namespace aisp::shared {

using bf16 = __nv_bfloat16;
inline constexpr int packet = 8;  // elements that one access of 16 bytes moves: a uint4

__device__ __forceinline__ void unpack(const uint4& from, float (&x)[packet]) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[packet]) {
  return make_uint4(device::narrow_bf16(x[0], x[1]), device::narrow_bf16(x[2], x[3]), device::narrow_bf16(x[4], x[5]),
                    device::narrow_bf16(x[6], x[7]));
}

// In two chains, each half as long.
__device__ __forceinline__ float sum_of_squares(const float (&x)[packet]) {
  float sums[2] = {x[0] * x[0], x[1] * x[1]};
#pragma unroll
  for (int i = 2; i < packet; ++i) sums[i % 2] = fmaf(x[i], x[i], sums[i % 2]);
  return sums[0] + sums[1];
}

// Exponentials are taken to base 2, and the factor that makes it e goes into the multiply-add before them.
inline constexpr float log2_e = 1.4426950408889634f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

// The maximum of the elements seen so far, and the sum of their exponentials relative to it.
struct MaxSum {
  float maximum, sum;
};
__device__ __forceinline__ MaxSum nothing_seen() { return {minus_infinity(), 0}; }

// Returns the level that exponentials are relative to: the maximum, or 0 as long as all elements were -infinity, of which the
// difference would be no number.
__device__ __forceinline__ float level(float maximum) { return maximum == minus_infinity() ? 0 : maximum; }

// e^(x - maximum), with `offset` = level(maximum) * log2_e.
__device__ __forceinline__ float exponential(float x, float offset) { return device::exp2_approximate(fmaf(x, log2_e, -offset)); }

// The sum relative to a maximum that is not below its own. Where both are equal the factor is exactly 1.
__device__ __forceinline__ float sum_at(const MaxSum& from, float maximum) {
  return from.sum * device::exp2_approximate((from.maximum - level(maximum)) * log2_e);
}

template <int count>
__device__ __forceinline__ float maximum_of(const float (&x)[count]) {
  float maximum = x[0];
#pragma unroll
  for (int i = 1; i < count; ++i) maximum = fmaxf(maximum, x[i]);
  return maximum;
}

// The online step: a maximum that is outgrown takes the sum down with it.
__device__ __forceinline__ void add(MaxSum& seen, const float (&x)[packet]) {
  const float maximum = fmaxf(seen.maximum, maximum_of(x)), offset = level(maximum) * log2_e;
  float sum = sum_at(seen, maximum);
#pragma unroll
  for (int i = 0; i < packet; ++i) sum += exponential(x[i], offset);
  seen = {maximum, sum};
}

// Over a warp, or groups of neighbouring lanes: every lane gets the result.
template <int width = device::warp_size>
__device__ __forceinline__ MaxSum warp_merge(const MaxSum& own) {
  const float maximum = device::warp_max<width>(own.maximum);
  return {maximum, device::warp_sum<width>(sum_at(own, maximum))};
}

// Over a block, whose size is a multiple of 32; `shared` as for device::block_reduce. Contains two __syncthreads.
__device__ __forceinline__ MaxSum block_merge(const MaxSum& own, MaxSum* shared) {
  const unsigned lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const MaxSum of_warp = warp_merge(own);
  __syncthreads();  // readers of the merge before this one are done
  if (lane == 0) shared[warp] = of_warp;
  __syncthreads();
  return warp_merge(lane < blockDim.x / device::warp_size ? shared[lane] : nothing_seen());
}

}  // namespace aisp::shared
