// SPDX-License-Identifier: Apache-2.0
// A product of 32 x 256 by 256 x 256 in fp32 that is over in a microsecond or two: work for as many threads as there are SMs to
// hold them, each with few terms of many outputs.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::ch01::short_matmul {

constexpr int batch = 32, width = 256;

constexpr int tile_rows = 4, tile_columns = 8;            // 256 blocks: all SMs take part
constexpr int depth = 2, matmul_threads = width / depth;  // of the dot products each thread makes `depth` terms
static_assert(tile_rows * tile_columns == device::warp_size, "at the end of the sums each lane owns one output");

// Sums 32 outputs over the lanes of a warp. Two lanes swap halves: each keeps one half of the outputs and gives the other away,
// until lane i holds output i, as sums[0]. That takes 31 shuffles instead of the 160 of 32 separate sums.
template <int half>
__device__ __forceinline__ void exchange_halves(float (&sums)[device::warp_size], int lane) {
  const bool upper = (lane & half) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float low = sums[i], high = sums[i + half];
    sums[i] = (upper ? high : low) + __shfl_xor_sync(device::whole_warp, upper ? low : high, half);
  }
  if constexpr (half > 1) exchange_halves<half / 2>(sums, lane);
}

// h = x w. The kernel is over in about one trip to L2: every thread asks for all it needs at once, namely x and w for two values
// of k, multiplies, and the sums over k are made across threads.
static __global__ __launch_bounds__(matmul_threads) void matmul_kernel(const float* x, const float* w, float* h) {
  __shared__ float partial[matmul_threads / device::warp_size][device::warp_size];
  const int first_column = blockIdx.x * tile_columns, first_row = blockIdx.y * tile_rows, k = threadIdx.x * depth;
  const int warp = threadIdx.x / device::warp_size, lane = threadIdx.x % device::warp_size;
  float2 xs[tile_rows];
  float4 ws[depth][tile_columns / 4];
#pragma unroll
  for (int row = 0; row < tile_rows; ++row) xs[row] = *reinterpret_cast<const float2*>(x + (first_row + row) * width + k);
#pragma unroll
  for (int i = 0; i < depth; ++i)
#pragma unroll
    for (int j = 0; j < tile_columns / 4; ++j)
      ws[i][j] = *reinterpret_cast<const float4*>(w + (k + i) * width + first_column + j * 4);

  float sums[device::warp_size];  // output [row][column] of the tile at row * tile_columns + column
#pragma unroll
  for (int row = 0; row < tile_rows; ++row)
#pragma unroll
    for (int j = 0; j < tile_columns / 4; ++j) {
      float* const sum = sums + row * tile_columns + j * 4;
      sum[0] = fmaf(xs[row].y, ws[1][j].x, xs[row].x * ws[0][j].x);
      sum[1] = fmaf(xs[row].y, ws[1][j].y, xs[row].x * ws[0][j].y);
      sum[2] = fmaf(xs[row].y, ws[1][j].z, xs[row].x * ws[0][j].z);
      sum[3] = fmaf(xs[row].y, ws[1][j].w, xs[row].x * ws[0][j].w);
    }

  exchange_halves<device::warp_size / 2>(sums, lane);
  partial[warp][lane] = sums[0];
  __syncthreads();
  if (warp != 0) return;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < matmul_threads / device::warp_size; ++part) sum += partial[part][lane];
  h[(first_row + lane / tile_columns) * width + first_column + lane % tile_columns] = sum;
}

}  // namespace aisp::ch01::short_matmul
