// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache on mma.sync (sm_80): the work of attention/mla.cuh, 64 query heads and a piece of the keys a
// block. Tiles of 32 keys arrive by cp.async one ahead. In the first product a warp has 16 heads and 16 keys, in the second 32
// heads and 128 columns: scores and weights change hands in shared memory.
//
// The 16-byte chunk c of a row lies at c ^ (row % 8), so that ldmatrix meets no bank twice.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>

#include "attention/mla.cuh"

namespace aisp::ch18 {

constexpr int latent_threads = 256, latent_heads = 64, latent_keys = 32;
constexpr int latent_columns = attention::mla_key_size, latent_pitch = latent_columns * 2, latent_chunks = latent_pitch / 16;

struct LatentTiles {
  alignas(128) unsigned char q[latent_heads * latent_pitch], k[2][latent_keys * latent_pitch];
  float scores[latent_heads][latent_keys + 1];
  alignas(16) attention::bf16 weights[latent_heads][latent_keys + 8];
  float factor[latent_heads];
};

__device__ __forceinline__ unsigned chunk_place(int row, int chunk) {
  return static_cast<unsigned>(row * latent_pitch + (chunk ^ row % 8) * 16);
}
// Rows from `valid` on become zeros.
template <int rows>
__device__ __forceinline__ void copy_latents(unsigned char* to, const attention::bf16* from, int valid) {
#pragma unroll 3
  for (int i = static_cast<int>(threadIdx.x); i < rows * latent_chunks; i += latent_threads) {
    const int row = i / latent_chunks, chunk = i % latent_chunks;
    device::copy_async_16_or_zero(to + chunk_place(row, chunk),
                                  from + (std::size_t(min(row, valid - 1)) * latent_columns + chunk * 8), row < valid);
  }
}

// scores = Q K^T, of 16 heads and 16 keys.
__device__ __forceinline__ void score_tile(LatentTiles& tiles, int slot) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_head = warp / 2 * 16, first_key = warp % 2 * 16;
  const std::uint32_t q = device::shared_address(tiles.q) + chunk_place(first_head + lane % 16, lane / 16),
                      k = device::shared_address(tiles.k[slot]) + chunk_place(first_key + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float sums[2][8] = {};  // of even and odd steps: two chains of sums, each half as long
#pragma unroll
  for (int step = 0; step < latent_columns / 16; ++step) {
    unsigned a[4], b[4];
    device::load_matrices(a, (q ^ step % 4 * 32) + step / 4 * 128);
    device::load_matrices(b, (k ^ step % 4 * 32) + step / 4 * 128);
    device::mma_bf16(&sums[step % 2][0], a, b[0], b[1]);
    device::mma_bf16(&sums[step % 2][4], a, b[2], b[3]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    tiles.scores[first_head + lane / 4 + i / 2 % 2 * 8][first_key + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[0][i] + sums[1][i];
}

// Four threads have a head, each a quarter of the keys.
struct HeadRow {
  float maximum = -attention::infinity, sum = 0;

  // Weights of the tile's first `valid` keys. True if what the head has summed up must be multiplied by its factor.
  __device__ __forceinline__ bool weigh(LatentTiles& tiles, int valid, float scale) {
    constexpr int own = latent_keys / 4;
    constexpr float slack = 8;
    const int head = static_cast<int>(threadIdx.x) / 4, first = static_cast<int>(threadIdx.x) % 4 * own;
    float x[own], highest = -attention::infinity;
#pragma unroll
    for (int i = 0; i < own; ++i) {
      x[i] = first + i < valid ? tiles.scores[head][first + i] : -attention::infinity;
      highest = fmaxf(highest, x[i]);
    }
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    const bool outgrown = (highest - maximum) * scale > slack;
    float factor = 1;
    if (outgrown) {
      factor = device::exp2_approximate((maximum - highest) * scale);
      maximum = highest;
      sum *= factor;
    }
    if (first == 0) tiles.factor[head] = factor;
#pragma unroll
    for (float& weight : x) {
      weight = device::exp2_approximate(fmaf(weight, scale, -maximum * scale));
      sum += weight;
    }
    *reinterpret_cast<uint4*>(&tiles.weights[head][first]) =
        uint4{device::narrow_bf16(x[0], x[1]), device::narrow_bf16(x[2], x[3]), device::narrow_bf16(x[4], x[5]),
              device::narrow_bf16(x[6], x[7])};
    return outgrown;
  }
};

// blockIdx.x: the 64 heads; blockIdx.y: the piece. The cache has `tokens` rows for a sequence.
template <class Splits>
__global__ __launch_bounds__(latent_threads, 1) void latent_tiles_kernel(const attention::bf16* q, const attention::bf16* latents,
                                                                         int tokens,
                                                                         const __grid_constant__ attention::Mla<Splits> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& tiles = *reinterpret_cast<LatentTiles*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = warp / 4 * 32, first_column = warp % 4 * 128, block_head = static_cast<int>(blockIdx.x) * latent_heads;
  attention::Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  latents += std::size_t(piece.sequence) * tokens * latent_columns;
  const auto copy_tile = [&](int first, int slot) {
    if (first < piece.end)
      copy_latents<latent_keys>(tiles.k[slot], latents + std::size_t(first) * latent_columns,
                                min(latent_keys, piece.end - first));
    device::commit_copies();
  };
  copy_latents<latent_heads>(tiles.q, q + (std::size_t(piece.sequence) * work.heads + block_head) * latent_columns, latent_heads);
  copy_tile(piece.begin, 0);
  HeadRow own;
  float sums[2][16][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) sums[i / 64][i / 4 % 16][i % 4] = 0;
  for (int first = piece.begin, slot = 0; first < piece.end; first += latent_keys, slot ^= 1) {
    device::wait_copies<0>();
    __syncthreads();  // this tile is here, and nobody reads the last one any more
    copy_tile(first + latent_keys, slot ^ 1);
    score_tile(tiles, slot);
    __syncthreads();
    const bool outgrown = own.weigh(tiles, piece.end - first, work.scale_log2);
    if (__syncthreads_or(outgrown)) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float factor = tiles.factor[first_row + i * 16 + half * 8 + lane / 4];
#pragma unroll
          for (auto& of : sums[i]) of[half * 2] *= factor, of[half * 2 + 1] *= factor;
        }
    }
    const std::uint32_t v = device::shared_address(tiles.k[slot]) + chunk_place(lane % 16, lane / 16) + first_column * 2;
#pragma unroll
    for (int step = 0; step < latent_keys / 16; ++step) {
      unsigned weights[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        device::load_matrices(weights[i],
                              device::shared_address(&tiles.weights[first_row + i * 16 + lane % 16][step * 16 + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        unsigned m[4];
        device::load_matrices_transposed(m, (v ^ j % 4 * 32) + j / 4 * 128 + step * 16 * latent_pitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) device::mma_bf16(sums[i % 2][2 * j + i / 2], weights[i % 2], m[i / 2 * 2], m[i / 2 * 2 + 1]);
      }
    }
  }
  device::wait_copies<0>();  // of queries, where there are no keys
  __syncthreads();
  own.sum += __shfl_xor_sync(~0u, own.sum, 1);
  own.sum += __shfl_xor_sync(~0u, own.sum, 2);
  const std::size_t first_to = std::size_t(piece.slot) * work.heads + block_head;
  if (threadIdx.x % 4 == 0) {
    const int head = static_cast<int>(threadIdx.x) / 4;
    tiles.factor[head] = attention::reciprocal(own.sum);
    work.log_sums[first_to + head] = attention::log_sum_exp(own.maximum, own.sum, work.scale_log2);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + i * 16 + half * 8 + lane / 4;
      const float factor = tiles.factor[row];
      float* const to = work.o + (first_to + row) * attention::latent_size + first_column + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 16; ++j)
        *reinterpret_cast<float2*>(to + j * 8) = float2{sums[i][j][half * 2] * factor, sums[i][j][half * 2 + 1] * factor};
    }
}

}  // namespace aisp::ch18
