// SPDX-License-Identifier: Apache-2.0
// Softmax of rows that stay in registers, by as many threads a row as divide it. Compiled by nvcc, and at run time by NVRTC.
#pragma once
#include "elementwise.cuh"

namespace aisp::ch14 {

inline constexpr unsigned warp = 32, most_row_threads = 1024;

// Every thread of a row gets the result. Up to 32 threads share a warp with those of other rows, and need not be a power of two;
// more of them are a block, and threads beyond the row give `identity`.
template <unsigned row_threads, class Op>
__device__ __forceinline__ float row_reduce(float value, float identity, Op op) {
  if constexpr (row_threads <= warp) {
    const unsigned lane = threadIdx.x % warp, place = lane % row_threads;
    constexpr unsigned used = warp / row_threads * row_threads;  // lanes; those after them have no row
    const unsigned first = lane < used ? lane - place : used;
#pragma unroll
    for (unsigned offset = warp / 2; offset > 0; offset /= 2)
      if (offset < row_threads) {
        const float other = __shfl_down_sync(0xFFFFFFFFu, value, offset);
        if (place + offset < row_threads && lane < used) value = op(value, other);
      }
    return __shfl_sync(0xFFFFFFFFu, value, first % warp);
  } else {
    __shared__ float parts[warp];
    constexpr unsigned warps = (row_threads + warp - 1) / warp;
    const unsigned lane = threadIdx.x % warp;
#pragma unroll
    for (unsigned offset = warp / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    __syncthreads();  // readers of the reduction before this one are done
    if (lane == 0) parts[threadIdx.x / warp] = value;
    __syncthreads();
    value = lane < warps ? parts[lane] : identity;
#pragma unroll
    for (unsigned offset = warp / 2; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
    return value;
  }
}

// Rows of row_threads * each packets, which is all of the row where `exact`, else at least as many as the row's `packets`. A
// block has `block_warps` warps.
template <unsigned row_threads, unsigned each, bool exact, unsigned block_warps>
__global__ void __launch_bounds__(block_warps* warp)
    softmax_rows_kernel(const uint4* __restrict__ in, uint4* __restrict__ out, unsigned rows, unsigned packets) {
  constexpr bool several = row_threads <= warp;  // rows a warp
  constexpr unsigned warp_rows = several ? warp / row_threads : 1;
  const unsigned lane = threadIdx.x % warp;
  const unsigned place = several ? lane % row_threads : threadIdx.x;
  const unsigned row = several ? (blockIdx.x * block_warps + threadIdx.x / warp) * warp_rows + lane / row_threads : blockIdx.x;
  const unsigned count = exact ? row_threads * each : packets;
  const bool has_row =
      several ? lane / row_threads < warp_rows && row < rows : block_warps * warp == row_threads || place < row_threads;
  const unsigned long long start = static_cast<unsigned long long>(row) * count + place;
  const auto is_mine = [&](unsigned k) { return has_row && (exact || place + k * row_threads < count); };

  uint4 loaded[each];
#pragma unroll
  for (unsigned k = 0; k < each; ++k) {
    loaded[k] = make_uint4(0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u);  // -infinity
    if (is_mine(k)) loaded[k] = in[start + k * row_threads];
  }
  float x[each][packet];
  const float lowest = __uint_as_float(0xFF800000u);
  float maximum = lowest, sum = 0;
#pragma unroll
  for (unsigned k = 0; k < each; ++k) {
    unpack(loaded[k], x[k]);
#pragma unroll
    for (int i = 0; i < packet; ++i) maximum = fmaxf(maximum, x[k][i]);
  }
  maximum = row_reduce<row_threads>(maximum, lowest, [](float a, float b) { return fmaxf(a, b); });
  const float offset = has_row ? maximum * log2_e : 0;
#pragma unroll
  for (unsigned k = 0; k < each; ++k)
#pragma unroll
    for (int i = 0; i < packet; ++i) sum += x[k][i] = device::exp2_approximate(fmaf(x[k][i], log2_e, -offset));
  sum = row_reduce<row_threads>(sum, 0.0f, [](float a, float b) { return a + b; });
  const float factor = 1.0f / sum;
#pragma unroll
  for (unsigned k = 0; k < each; ++k) {
#pragma unroll
    for (int i = 0; i < packet; ++i) x[k][i] *= factor;
    if (is_mine(k)) out[start + k * row_threads] = pack(x[k]);
  }
}

}  // namespace aisp::ch14
