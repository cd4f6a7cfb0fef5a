// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16 with fp32 sums. On CUDA cores every product is an instruction of its own and the FMA units are the limit,
// however well the kernel is tiled. One mma.sync of a warp does 2048 multiply-adds; the limit moves to feeding it: fragments come
// from shared memory by ldmatrix without bank conflicts, tiles come from L2 by cp.async several stages ahead. (Hopper's full rate
// needs wgmma: wgmma_matmul.)
#include <mma.h>

#include "gemm_workload.hpp"
#include "mma_sync_gemm.cuh"

namespace aisp::ch10 {
namespace {

using mma_sync::bf16;
constexpr int threads = 256;

// bf16 is the upper half of fp32.
__device__ void widen(uint4 packed, float (&values)[8]) {
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000);
  }
}

// 128 x 128 outputs a block, 8 x 8 a thread; the next tiles wait in registers while the present ones are multiplied.
__global__ __launch_bounds__(threads, 2) void cuda_core_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  constexpr int tile = 128, depth = 16;
  __shared__ __align__(16) float tile_a[2][depth][tile + 4], tile_b[2][depth][tile];  // A transposed
  const int t = threadIdx.x, tx = t % 16 * 4, ty = t / 16 * 4;
  const int a_row = t / 2, a_k = t % 2 * 8, b_k = t / 16, b_column = t % 16 * 8;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  const bf16* from_a = a + (top + a_row) * n + a_k;
  const bf16* from_b = b + static_cast<std::size_t>(b_k) * n + left + b_column;
  uint4 next_a, next_b;
  const auto fetch = [&] {
    next_a = *reinterpret_cast<const uint4*>(from_a);
    next_b = *reinterpret_cast<const uint4*>(from_b);
    from_a += depth;
    from_b += static_cast<std::size_t>(depth) * n;
  };
  const auto stage = [&](int slot) {
    float v[8];
    widen(next_a, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) tile_a[slot][a_k + i][a_row] = v[i];
    widen(next_b, v);
    auto* to = reinterpret_cast<float4*>(&tile_b[slot][b_k][b_column]);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
  };
  fetch();
  stage(0);
  __syncthreads();
  float sums[8][8] = {};
  for (int k = 0, slot = 0; k < n; k += depth, slot ^= 1) {
    const bool more = k + depth < n;
    if (more) fetch();
#pragma unroll
    for (int i = 0; i < depth; ++i) {
      float4 x[2], y[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        y[half] = *reinterpret_cast<const float4*>(&tile_a[slot][i][ty + half * 64]);
        x[half] = *reinterpret_cast<const float4*>(&tile_b[slot][i][tx + half * 64]);
      }
      const float column[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
      const float row[8] = {y[0].x, y[0].y, y[0].z, y[0].w, y[1].x, y[1].y, y[1].z, y[1].w};
#pragma unroll
      for (int m = 0; m < 8; ++m)
#pragma unroll
        for (int l = 0; l < 8; ++l) sums[m][l] = fmaf(row[m], column[l], sums[m][l]);
    }
    if (more) stage(slot ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < 8; ++m)
#pragma unroll
    for (int half = 0; half < 8; half += 4)
      *reinterpret_cast<uint2*>(c + (top + ty + m % 4 + m / 4 * 64) * n + left + tx + half * 16) = make_uint2(
          device::narrow_bf16(sums[m][half], sums[m][half + 1]), device::narrow_bf16(sums[m][half + 2], sums[m][half + 3]));
}

// The same tiling of the block, but a warp multiplies fragments of 16 x 16 x 16: 64 x 32 outputs each. Rows are padded by 16
// bytes, so that eight rows of a fragment lie in different banks.
__global__ __launch_bounds__(threads, 2) void wmma_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  namespace wmma = nvcuda::wmma;
  constexpr int tile = 128, depth = 32;
  __shared__ __align__(32) bf16 tile_a[2][tile][depth + 8], tile_b[2][depth][tile + 8];
  __shared__ __align__(32) float patches[threads / 32][16][20];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
  const int a_row = t / 4, a_k = t % 4 * 8, b_k = t / 16, b_column = t % 16 * 8;
  const std::size_t top = blockIdx.y * tile, left = blockIdx.x * tile;
  uint4 next_a[2], next_b[2];
  const auto fetch = [&](int k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next_a[i] = *reinterpret_cast<const uint4*>(a + (top + a_row + i * 64) * n + k + a_k);
      next_b[i] = *reinterpret_cast<const uint4*>(b + static_cast<std::size_t>(k + b_k + i * 16) * n + left + b_column);
    }
  };
  const auto stage = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(&tile_a[slot][a_row + i * 64][a_k]) = next_a[i];
      *reinterpret_cast<uint4*>(&tile_b[slot][b_k + i * 16][b_column]) = next_b[i];
    }
  };
  fetch(0);
  stage(0);
  __syncthreads();
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4][2];
  for (auto& row : sums)
    for (auto& sum : row) wmma::fill_fragment(sum, 0.0f);
  for (int k = 0, slot = 0; k < n; k += depth, slot ^= 1) {
    const bool more = k + depth < n;
    if (more) fetch(k + depth);
#pragma unroll
    for (int i = 0; i < depth; i += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> x[4];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> y[2];
#pragma unroll
      for (int m = 0; m < 4; ++m) wmma::load_matrix_sync(x[m], &tile_a[slot][warp_row + m * 16][i], depth + 8);
#pragma unroll
      for (int l = 0; l < 2; ++l) wmma::load_matrix_sync(y[l], &tile_b[slot][i][warp_column + l * 16], tile + 8);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int l = 0; l < 2; ++l) wmma::mma_sync(sums[m][l], x[m], y[l], sums[m][l]);
    }
    if (more) stage(slot ^ 1);
    __syncthreads();
  }
  // The layout of a fragment is not documented: only through memory do its elements get names.
  auto& patch = patches[warp];
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      wmma::store_matrix_sync(&patch[0][0], sums[m][l], 20, wmma::mem_row_major);
      __syncwarp();
      const float* v = &patch[lane / 2][lane % 2 * 8];
      *reinterpret_cast<uint4*>(c + (top + warp_row + m * 16 + lane / 2) * n + left + warp_column + l * 16 + lane % 2 * 8) =
          make_uint4(device::narrow_bf16(v[0], v[1]), device::narrow_bf16(v[2], v[3]), device::narrow_bf16(v[4], v[5]),
                     device::narrow_bf16(v[6], v[7]));
      __syncwarp();
    }
}

class TensorCoreMatmul final : public GemmWorkload {
 public:
  explicit TensorCoreMatmul(Setup& setup) : GemmWorkload{setup, 4096, 4096, 4096} {}

  void cuda_cores(Launch& launch) { launch(cuda_core_kernel, {tiles(128, 128), threads}, a_, b_, c_, n_); }
  void wmma(Launch& launch) { launch(wmma_kernel, {tiles(128, 128), threads}, a_, b_, c_, n_); }
  void mma_sync_ring(Launch& launch) { mma_sync::multiply(launch, tiles(mma_sync::tile_m, mma_sync::tile_n), a_, b_, c_, n_); }
};

}  // namespace

extern constinit const Pair tensor_core_matmul{
    .teaches = "tensor cores, not tuning, give a matrix product its next order of magnitude: one instruction, thousands of FMAs",
    .lesson = "mma_sync",
    .make = make<TensorCoreMatmul>,
    .baseline = {.name = "cuda_cores", .run = call<&TensorCoreMatmul::cuda_cores>},
    .optimized = variants({{.name = "wmma", .run = call<&TensorCoreMatmul::wmma>},
                           {.name = "mma_sync", .run = call<&TensorCoreMatmul::mma_sync_ring>}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
};

}  // namespace aisp::ch10
