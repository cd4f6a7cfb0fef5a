// SPDX-License-Identifier: Apache-2.0
// Scores of a tile of vectors and a tile of queries by mma.sync, from rows of 64 columns in shared memory whose 16-byte chunk c
// lies at c ^ (row % 8), as TMA leaves them.
#pragma once
#include <aisp/device/matrix.cuh>

#include "candidate_lists.cuh"

namespace aisp::ch20 {

constexpr int threads = 256, warps = threads / 32;
constexpr int tile_vectors = 128, tile_queries = 64, tile_depth = 64, stages = 6, steps = depth / tile_depth;
static_assert(depth % tile_depth == 0);

using Products = float[2][4][4];  // of a warp: 32 vectors and 32 queries

__device__ __forceinline__ std::uint32_t chunk_at(const bf16* rows, unsigned row, unsigned chunk) {
  return device::shared_address(rows) + row * (tile_depth * 2) + (chunk ^ row % 8) * 16;
}
__device__ __forceinline__ void multiply(Products& sums, const bf16* vectors, const bf16* queries) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (unsigned k = 0; k < tile_depth / 16; ++k) {
    unsigned a[2][4], b[2][4];
#pragma unroll
    for (unsigned m = 0; m < 2; ++m) {
      device::load_matrices(a[m], chunk_at(vectors, warp / 2 * 32 + m * 16 + lane % 16, k * 2 + lane / 16));
      device::load_matrices(b[m], chunk_at(queries, warp % 2 * 32 + m * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n) device::mma_bf16(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
  }
}
// use(score, vector of the tile, query of the tile)
template <class Use>
__device__ __forceinline__ void each_product(const Products& sums, Use use) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (unsigned n = 0; n < 4; ++n)
#pragma unroll
    for (unsigned m = 0; m < 2; ++m)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        use(sums[m][n][i], warp / 2 * 32 + m * 16 + lane / 4 + i / 2 * 8, warp % 2 * 32 + n * 8 + lane % 4 * 2 + i % 2);
}

}  // namespace aisp::ch20
