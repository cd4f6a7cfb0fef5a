// SPDX-License-Identifier: Apache-2.0
// Layers of a model in float64, from bf16 weights and without any rounding in between: products on the GPU, as the CPU would take
// minutes.
#pragma once
#include <cuda_bf16.h>
#include <aisp/launch.hpp>

#include <cstddef>

namespace aisp::ch17::fp64 {

inline constexpr int tile = 64, tile_k = 16, threads = 256, each = 4;  // a thread has 4 x 4 results

enum class After { nothing, relu, gelu };  // gelu: as BERT has it, by tanh

template <After after>
__device__ double activated(double x) {
  if constexpr (after == After::relu) return x > 0 ? x : 0;
  else if constexpr (after == After::gelu) return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  else return x;
}

// c[m][n] = activated(a[m][k] b[k][n] + bias[n]); `bias` may be null. b is bf16.
template <After after>
static __global__ __launch_bounds__(threads) void product_kernel(const double* a, const __nv_bfloat16* b,
                                                                 const __nv_bfloat16* bias, double* c, int m, int n, int k) {
  __shared__ double of_a[tile_k][tile + 1], of_b[tile_k][tile];
  const int t = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.y) * tile,
            column = static_cast<int>(blockIdx.x) * tile;
  double sums[each][each] = {};
  for (int first = 0; first < k; first += tile_k) {
    for (int i = t; i < tile * tile_k; i += threads) {
      const int ar = row + i / tile_k, ak = first + i % tile_k, bk = first + i / tile, bc = column + i % tile;
      of_a[i % tile_k][i / tile_k] = ar < m && ak < k ? a[static_cast<std::size_t>(ar) * k + ak] : 0;
      of_b[i / tile][i % tile] =
          bk < k && bc < n ? static_cast<double>(__bfloat162float(b[static_cast<std::size_t>(bk) * n + bc])) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < tile_k; ++i)
#pragma unroll
      for (int r = 0; r < each; ++r)
#pragma unroll
        for (int j = 0; j < each; ++j) sums[r][j] += of_a[i][t / 16 + r * 16] * of_b[i][t % 16 + j * 16];
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int j = 0; j < each; ++j) {
      const int at_row = row + t / 16 + r * 16, at = column + t % 16 + j * 16;
      if (at_row >= m || at >= n) continue;
      const double shift = bias == nullptr ? 0 : static_cast<double>(__bfloat162float(bias[at]));
      c[static_cast<std::size_t>(at_row) * n + at] = activated<after>(sums[r][j] + shift);
    }
}

// Rows of bf16 in the order of `row_of`; a block for each.
static __global__ void widen_rows_kernel(const __nv_bfloat16* x, const int* row_of, double* rows, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x))
    rows[std::size_t{blockIdx.x} * width + i] =
        static_cast<double>(__bfloat162float(x[static_cast<std::size_t>(row_of[blockIdx.x]) * width + i]));
}

template <After after>
void multiply(cudaStream_t stream, const double* a, const __nv_bfloat16* b, const __nv_bfloat16* bias, double* c, std::size_t m,
              std::size_t n, std::size_t k) {
  const auto tiles = [](std::size_t extent) { return static_cast<unsigned>((extent + tile - 1) / tile); };
  if (m > 0) launch_kernel(stream, product_kernel<after>, {dim3{tiles(n), tiles(m)}, threads}, a, b, bias, c, m, n, k);
}

}  // namespace aisp::ch17::fp64
