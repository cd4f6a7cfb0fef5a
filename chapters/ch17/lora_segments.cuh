// SPDX-License-Identifier: Apache-2.0
// Low-rank products of tokens that use different adapters (segmented gather matrix-vector multiplication, SGMV): tokens are
// sorted by adapter, and up to 16 of one adapter are a tile of mma.sync.
#pragma once
#include "rows.cuh"

namespace aisp::ch17 {

using shared::bf16;
constexpr int tile_tokens = 16, most_adapters = 1024;

struct Segments {
  int* order;       // tokens by adapter, those without one not among them
  int4* tiles;      // adapter, first place in `order`, the place after the last
  int* tile_count;  // at most tokens / 16 + adapters
};

// A counting sort by one block. Which of an adapter's tokens comes first is left open: no token's result depends on it.
static __global__ __launch_bounds__(most_adapters) void sort_by_adapter_kernel(const int* adapter_of, int tokens, int adapters,
                                                                               const Segments segments) {
  __shared__ int counts[most_adapters], firsts[most_adapters], first_tiles[most_adapters];
  const int t = static_cast<int>(threadIdx.x);
  counts[t] = 0;
  __syncthreads();
  for (int token = t; token < tokens; token += most_adapters)
    if (const int adapter = adapter_of[token]; adapter >= 0) atomicAdd(&counts[adapter], 1);
  __syncthreads();
  const int count = counts[t], own_tiles = (count + tile_tokens - 1) / tile_tokens;
  firsts[t] = count, first_tiles[t] = own_tiles;
  for (int distance = 1; distance < most_adapters; distance *= 2) {
    __syncthreads();
    const int before = t >= distance ? firsts[t - distance] : 0, tiles_before = t >= distance ? first_tiles[t - distance] : 0;
    __syncthreads();
    firsts[t] += before, first_tiles[t] += tiles_before;
  }
  if (t == adapters - 1) *segments.tile_count = first_tiles[t];
  const int first = firsts[t] - count, first_tile = first_tiles[t] - own_tiles;
  for (int i = 0; i < own_tiles; ++i)
    segments.tiles[first_tile + i] = make_int4(t, first + i * tile_tokens, min(first + (i + 1) * tile_tokens, first + count), 0);
  counts[t] = first;
  __syncthreads();
  for (int token = t; token < tokens; token += most_adapters)
    if (const int adapter = adapter_of[token]; adapter >= 0) segments.order[atomicAdd(&counts[adapter], 1)] = token;
}

// Along the sum any order will do, as long as both factors have the same: 16 bytes of a row are a lane's part of two steps.
__device__ __forceinline__ void multiply_packets(float* sums, const uint4& upper, const uint4& lower, const uint4& column) {
  const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
  device::mma_bf16(sums, first, column.x, column.y);
  device::mma_bf16(sums, second, column.z, column.w);
}

// low[place][rank] = x[token] a[adapter]^T: a block has a tile, each of its warps an eighth of the sum. a[adapter][rank][in].
constexpr int shrink_threads = 256;
template <int rank>
__global__ __launch_bounds__(shrink_threads) void shrink_kernel(const bf16* __restrict__ x, const bf16* __restrict__ a,
                                                                const Segments segments, bf16* __restrict__ low, int in) {
  constexpr int warps = shrink_threads / 32, blocks = rank / 8;  // of eight columns
  __shared__ float parts[warps][tile_tokens][rank];
  if (static_cast<int>(blockIdx.x) >= *segments.tile_count) return;
  const int4 tile = segments.tiles[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4,
            share = in / warps;
  const auto packets = [&](const bf16* from, std::size_t index) {
    return reinterpret_cast<const uint4*>(from + index * in + warp * share) + lane % 4;
  };
  const uint4* const upper = packets(x, segments.order[min(tile.y + row, tile.z - 1)]);
  const uint4* const lower = packets(x, segments.order[min(tile.y + row + 8, tile.z - 1)]);
  const uint4* const of_a = packets(a, std::size_t{static_cast<unsigned>(tile.x)} * rank + row);
  float sums[blocks][4] = {};
#pragma unroll 4
  for (int step = 0; step < share / 32; ++step) {
    const uint4 rows[2] = {upper[step * 4], lower[step * 4]};
#pragma unroll
    for (int block = 0; block < blocks; ++block)
      multiply_packets(sums[block], rows[0], rows[1], of_a[step * 4 + std::size_t{static_cast<unsigned>(block)} * in]);
  }
#pragma unroll
  for (int block = 0; block < blocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[warp][row + i / 2 * 8][block * 8 + lane % 4 * 2 + i % 2] = sums[block][i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tile_tokens * rank; i += shrink_threads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += parts[w][i / rank][i % rank];
    if (const int place = tile.y + i / rank; place < tile.z)
      low[std::size_t{static_cast<unsigned>(place)} * rank + i % rank] = __float2bfloat16_rn(sum);
  }
}

// y[token] += low[place] b[adapter]^T for a tile and `expand_columns` columns: b[adapter][out][rank]. Columns are dealt out so
// that a lane's sums of four products are eight neighbours of y.
constexpr int expand_threads = 256, expand_rounds = 4, expand_columns = expand_threads * expand_rounds;
template <int rank>
__global__ __launch_bounds__(expand_threads) void expand_kernel(const bf16* __restrict__ low, const bf16* __restrict__ b,
                                                                const Segments segments, bf16* __restrict__ y, int out) {
  constexpr int steps = rank / 16;
  if (static_cast<int>(blockIdx.x) >= *segments.tile_count) return;
  const int4 tile = segments.tiles[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4,
            in_quad = lane % 4;
  const int places[2] = {tile.y + row, tile.y + row + 8};
  uint2 lows[2][steps];
  uint4* to[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = min(places[half], tile.z - 1);
    const uint2* const from = reinterpret_cast<const uint2*>(low + std::size_t{static_cast<unsigned>(place)} * rank) + in_quad;
#pragma unroll
    for (int step = 0; step < steps; ++step) lows[half][step] = from[step * 4];
    to[half] = reinterpret_cast<uint4*>(y + std::size_t{static_cast<unsigned>(segments.order[place])} * out) + in_quad;
  }
  const bf16* const of_adapter = b + std::size_t{static_cast<unsigned>(tile.x)} * out * rank;
  // All of y that the block adds to is asked for before anything is multiplied.
  uint4 held[expand_rounds][2];
  const auto first_of = [&](int round) {
    return static_cast<int>(blockIdx.y) * expand_columns + (round * (expand_threads / 32) + warp) * 32;
  };
#pragma unroll
  for (int round = 0; round < expand_rounds; ++round) {
#pragma unroll
    for (int half = 0; half < 2; ++half) held[round][half] = to[half][min(first_of(round), out - 32) / 8];
  }
#pragma unroll
  for (int round = 0; round < expand_rounds; ++round) {
    const int first = min(first_of(round), out - 32);
    float sums[4][4] = {};
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      const int column = first + row / 2 * 8 + block * 2 + row % 2;
      const uint2* const from =
          reinterpret_cast<const uint2*>(of_adapter + std::size_t{static_cast<unsigned>(column)} * rank) + in_quad;
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        const uint2 columns = from[step * 4];
        const unsigned rows[4] = {lows[0][step].x, lows[1][step].x, lows[0][step].y, lows[1][step].y};
        device::mma_bf16(sums[block], rows, columns.x, columns.y);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float v[shared::packet];
      shared::unpack(held[round][half], v);
#pragma unroll
      for (int i = 0; i < shared::packet; ++i) v[i] += sums[i / 2][half * 2 + i % 2];
      if (places[half] < tile.z && first_of(round) < out) to[half][first / 8] = shared::pack(v);
    }
  }
}

}  // namespace aisp::ch17
