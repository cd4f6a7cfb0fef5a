// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache on mma.sync (sm_80): the work of attention/mla.cuh, 64 query heads and a piece of the keys a
// block. Tiles of 32 keys arrive by cp.async, two ahead. In the first product a warp has 16 heads, all keys of a tile, and every
// other 16 of the columns, of which it keeps the queries in registers; in the second 32 heads and 128 columns. Scores and weights
// change hands in shared memory, and the scores of a tile are computed beside the values of the one before it.
//
// The 16-byte chunk c of a row lies at c ^ (row % 8), so that ldmatrix meets no bank twice.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>

#include "attention/mla.cuh"

namespace aisp::ch18 {

constexpr int latent_threads = 256, latent_heads = 64, latent_keys = 32, latent_slots = 3;
constexpr int latent_columns = attention::mla_key_size, latent_pitch = latent_columns * 2, latent_chunks = latent_pitch / 16;
constexpr int latent_steps = latent_columns / 32;  // of 16 columns, of a warp's half of them

struct LatentTiles {
  alignas(128) unsigned char k[latent_slots][latent_keys * latent_pitch];
  float scores[2][latent_heads][latent_keys + 1];  // of either half of the columns
  alignas(16) attention::bf16 weights[latent_heads][latent_keys + 8];
  float factor[latent_heads];
};

// The thread's index, asked for again, so that no register holds what follows from it over the loop: queries and sums take 200 of
// a thread's 255.
__device__ __forceinline__ int latent_thread() {
  int t = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(t));
  return t;
}
__device__ __forceinline__ unsigned chunk_place(int row, int chunk) {
  return static_cast<unsigned>(row * latent_pitch + (chunk ^ row % 8) * 16);
}
// Rows from `valid` on become zeros.
__device__ __forceinline__ void copy_latents(unsigned char* to, const attention::bf16* from, int valid) {
#pragma unroll 3
  for (int i = latent_thread(); i < latent_keys * latent_chunks; i += latent_threads) {
    const int row = i / latent_chunks, chunk = i % latent_chunks;
    device::copy_async_16_or_zero(to + chunk_place(row, chunk),
                                  from + (std::size_t(min(row, valid - 1)) * latent_columns + chunk * 8), row < valid);
  }
}

// A warp's state of 16 heads.
struct LatentQueries {
  unsigned own[latent_steps][4];

  // `q`: of the block's first head.
  __device__ __forceinline__ void load(const attention::bf16* q) {
    const int warp = latent_thread() / 32, lane = latent_thread() % 32;
    q += (warp / 2 * 16 + lane / 4) * latent_columns + warp % 2 * 16 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < latent_steps * 4; ++i)
      own[i / 4][i % 4] = *reinterpret_cast<const unsigned*>(q + i / 4 * 32 + i % 2 * 8 * latent_columns + i / 2 % 2 * 8);
  }
  // scores = Q K^T, of the warp's half of the columns.
  __device__ __forceinline__ void score(LatentTiles& tiles, int slot) const {
    const int thread = latent_thread(), lane = thread % 32, half = thread / 32 % 2, first_head = thread / 64 * 16;
    const std::uint32_t k = device::shared_address(tiles.k[slot]) +
                            (chunk_place(lane / 16 * 8 + lane % 8, lane / 8 % 2) ^ static_cast<unsigned>(half * 32));
    float sums[latent_keys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < latent_steps; ++step)
#pragma unroll
      for (int n = 0; n < latent_keys / 16; ++n) {
        unsigned b[4];
        device::load_matrices(b, (k ^ step % 2 * 64) + step / 2 * 128 + n * 16 * latent_pitch);
        device::mma_bf16(sums[2 * n], own[step], b[0], b[1]);
        device::mma_bf16(sums[2 * n + 1], own[step], b[2], b[3]);
      }
#pragma unroll
    for (int i = 0; i < latent_keys / 2; ++i)
      tiles.scores[half][first_head + lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i / 4][i % 4];
  }
};

// Four threads have a head, each a quarter of the keys.
struct LatentRow {
  float maximum = -attention::infinity, sum = 0;

  // Weights of the tile's first `valid` keys. True if what the head has summed up must be multiplied by its factor.
  __device__ __forceinline__ bool weigh(LatentTiles& tiles, int valid, float scale) {
    constexpr int own = latent_keys / 4;
    constexpr float slack = 8;
    const int thread = latent_thread(), head = thread / 4, first = thread % 4 * own;
    float x[own], highest = -attention::infinity;
#pragma unroll
    for (int i = 0; i < own; ++i) {
      x[i] = first + i < valid ? tiles.scores[0][head][first + i] + tiles.scores[1][head][first + i] : -attention::infinity;
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

// A warp's part of the results.
struct LatentSums {
  float sums[2][16][4];

  __device__ __forceinline__ static int first_row(int thread) { return thread / 128 * 32; }
  __device__ __forceinline__ static int first_column(int thread) { return thread / 32 % 4 * 128; }
  __device__ __forceinline__ void rescale(const LatentTiles& tiles) {
    const int thread = latent_thread(), lane = thread % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = tiles.factor[first_row(thread) + i * 8 + lane / 4];
#pragma unroll
      for (auto& of : sums[i / 2]) of[i % 2 * 2] *= factor, of[i % 2 * 2 + 1] *= factor;
    }
  }
  __device__ __forceinline__ void add(const LatentTiles& tiles, int slot) {
    const int thread = latent_thread(), lane = thread % 32;
    const std::uint32_t v = device::shared_address(tiles.k[slot]) + chunk_place(lane % 16, lane / 16) + first_column(thread) * 2;
#pragma unroll
    for (int step = 0; step < latent_keys / 16; ++step) {
      unsigned weights[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        device::load_matrices(weights[i], device::shared_address(
                                              &tiles.weights[first_row(thread) + i * 16 + lane % 16][step * 16 + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        unsigned m[4];
        device::load_matrices_transposed(m, (v ^ j % 4 * 32) + j / 4 * 128 + step * 16 * latent_pitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) device::mma_bf16(sums[i % 2][2 * j + i / 2], weights[i % 2], m[i / 2 * 2], m[i / 2 * 2 + 1]);
      }
    }
  }
};

// blockIdx.x: the 64 heads; blockIdx.y: the piece. The cache has `tokens` rows for a sequence.
template <class Splits>
__global__ __launch_bounds__(latent_threads, 1) void latent_tiles_kernel(const attention::bf16* q, const attention::bf16* latents,
                                                                         int tokens,
                                                                         const __grid_constant__ attention::Mla<Splits> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& tiles = *reinterpret_cast<LatentTiles*>(memory);
  const int block_head = static_cast<int>(blockIdx.x) * latent_heads;
  attention::Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  latents += std::size_t(piece.sequence) * tokens * latent_columns;
  const auto copy_tile = [&](int first, int slot) {
    if (first < piece.end)
      copy_latents(tiles.k[slot], latents + std::size_t(first) * latent_columns, min(latent_keys, piece.end - first));
    device::commit_copies();
  };
  LatentQueries queries;
  LatentRow row;
  LatentSums own;
#pragma unroll
  for (int i = 0; i < 128; ++i) own.sums[i / 64][i / 4 % 16][i % 4] = 0;
  copy_tile(piece.begin, 0);
  copy_tile(piece.begin + latent_keys, 1);
  queries.load(q + (std::size_t(piece.sequence) * work.heads + block_head) * latent_columns);
  device::wait_copies<0>();
  __syncthreads();
  if (piece.begin < piece.end) {
    queries.score(tiles, 0);
    __syncthreads();
    row.weigh(tiles, piece.end - piece.begin, work.scale_log2);  // nothing has been summed up
    __syncthreads();
  }
  bool rescales = false;
  for (int first = piece.begin, slot = 0; first < piece.end; first += latent_keys) {
    const int following = first + latent_keys, next = slot == latent_slots - 1 ? 0 : slot + 1;
    copy_tile(following + latent_keys, next == latent_slots - 1 ? 0 : next + 1);
    if (following < piece.end) queries.score(tiles, next);
    if (rescales) own.rescale(tiles);
    own.add(tiles, slot);
    __syncthreads();  // scores are here, and nobody reads weights any more
    const bool outgrown = following < piece.end && row.weigh(tiles, piece.end - following, work.scale_log2);
    device::wait_copies<0>();
    rescales = __syncthreads_or(outgrown);  // weights are here, and the next tile
    slot = next;
  }
  row.sum += __shfl_xor_sync(~0u, row.sum, 1);
  row.sum += __shfl_xor_sync(~0u, row.sum, 2);
  const std::size_t first_to = std::size_t(piece.slot) * work.heads + block_head;
  if (threadIdx.x % 4 == 0) {
    const int head = static_cast<int>(threadIdx.x) / 4;
    tiles.factor[head] = attention::reciprocal(row.sum);
    work.log_sums[first_to + head] = attention::log_sum_exp(row.maximum, row.sum, work.scale_log2);
  }
  __syncthreads();
  own.rescale(tiles);
  const int thread = latent_thread();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* const to = work.o + (first_to + own.first_row(thread) + i * 8 + thread % 32 / 4) * attention::latent_size +
                      own.first_column(thread) + thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j)
      *reinterpret_cast<float2*>(to + j * 8) = float2{own.sums[i / 2][j][i % 2 * 2], own.sums[i / 2][j][i % 2 * 2 + 1]};
  }
}

}  // namespace aisp::ch18
