// SPDX-License-Identifier: Apache-2.0
// GELU of all elements of an FP8 product in float64: their largest magnitude, and how many of them saturate e4m3 under a scale.
#pragma once
#include <cuda_fp8.h>
#include <aisp/launch.hpp>

#include <cmath>
#include <cstddef>

namespace aisp::ch19 {

// The approximation by tanh, as the sigmoid that it is, so that nothing cancels.
__host__ __device__ inline double gelu(double x) { return x / (1 + exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))); }

// The reference of a whole result: `amax` as the bits of a double, which are ordered as magnitudes are.
struct GeluProduct {
  unsigned long long amax_bits, saturated_at_least, saturated_at_most;
};
// Codes are 448 from the middle between it and the value below on. Sums and roundings on the way move few values by more than one
// in a hundred, and those as large as these by less.
inline constexpr double saturates_from = 432, may_saturate = 0.01;

namespace detail {

constexpr int reference_tile = 64, reference_depth = 16;

// A block has a tile of 64 x 64, a thread 4 x 4 of it, 16 apart. x[m][k], w[n][k].
static __global__ __launch_bounds__(256) void gelu_product_kernel(const __nv_fp8_e4m3* x, const __nv_fp8_e4m3* w, unsigned m,
                                                                  unsigned n, unsigned k, double alpha, double scale,
                                                                  GeluProduct* found) {
  __shared__ double of_x[reference_depth][reference_tile + 1], of_w[reference_depth][reference_tile + 1];
  const unsigned left = blockIdx.x * reference_tile, top = blockIdx.y * reference_tile;
  const unsigned column = threadIdx.x % 16, row = threadIdx.x / 16;
  double sums[4][4] = {};
  for (unsigned first = 0; first < k; first += reference_depth) {
    for (unsigned i = threadIdx.x; i < reference_tile * reference_depth; i += blockDim.x) {
      const unsigned at = i / reference_depth, depth = i % reference_depth;
      const bool in_k = first + depth < k;
      of_x[depth][at] = in_k && top + at < m ? static_cast<double>(float{x[std::size_t{top + at} * k + first + depth]}) : 0;
      of_w[depth][at] = in_k && left + at < n ? static_cast<double>(float{w[std::size_t{left + at} * k + first + depth]}) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < reference_depth; ++depth) {
      double a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = of_x[depth][row + 16 * i], b[i] = of_w[depth][column + 16 * i];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fma(a[i], b[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  double largest = 0;
  unsigned at_least = 0, at_most = 0;
  for (unsigned i = 0; i < 4; ++i) {
    for (unsigned j = 0; j < 4; ++j) {
      if (top + row + 16 * i >= m || left + column + 16 * j >= n) continue;
      const double value = fabs(gelu(sums[i][j] * alpha));
      largest = fmax(largest, value);
      at_least += value * scale >= saturates_from * (1 + may_saturate);
      at_most += value * scale >= saturates_from * (1 - may_saturate);
    }
  }
  atomicMax(&found->amax_bits, static_cast<unsigned long long>(__double_as_longlong(largest)));
  if (at_least > 0) atomicAdd(&found->saturated_at_least, at_least);
  if (at_most > 0) atomicAdd(&found->saturated_at_most, at_most);
}

}  // namespace detail

// `found` lies on the GPU.
inline void compute_gelu_product(cudaStream_t stream, const __nv_fp8_e4m3* x, const __nv_fp8_e4m3* w, std::size_t m,
                                 std::size_t n, std::size_t k, double alpha, double scale, GeluProduct* found) {
  const auto tiles = [](std::size_t extent) {
    return static_cast<unsigned>((extent + detail::reference_tile - 1) / detail::reference_tile);
  };
  check(cudaMemsetAsync(found, 0, sizeof *found, stream));
  launch_kernel(stream, detail::gelu_product_kernel, {.blocks = {tiles(n), tiles(m)}, .threads = 256}, x, w, m, n, k, alpha,
                scale, found);
}

}  // namespace aisp::ch19
