// SPDX-License-Identifier: Apache-2.0
// The backward kernel's tiles in shared memory, the warp that fills them, and the kernels before and after it.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>

#include "forward_shared.cuh"

namespace aisp::attention {

// Two warpgroups have 64 keys each, and take 64 query rows at a time.
template <int head_size_>
struct BackwardShape {
  static_assert(head_size_ == 64 || head_size_ == 128);
  static constexpr int head_size = head_size_, boxes = head_size / 64, stages = 2, rows = 64;
  // A warpgroup computes 64 columns of dQ: where there are 128, half of them over all 128 keys; otherwise all over its own keys.
  static constexpr bool by_columns = head_size == 128;
  static constexpr int chunks = by_columns ? 2 : 1;  // of 64 columns, in a tile of dQ
  static constexpr int chunk_elements = rows * 64;
};

template <class S>
struct alignas(1024) BackwardShared {
  alignas(1024) bf16 k[S::boxes][tile_keys * 64], v[S::boxes][tile_keys * 64];
  bf16 q[S::stages][S::boxes][S::rows * 64], d_o[S::stages][S::boxes][S::rows * 64];
  bf16 d_s[2][2][64 * S::rows];  // by turn and warpgroup; its keys are rows
  float d_q[2][S::chunk_elements];
  float log_sums[S::stages][S::rows], deltas[S::stages][S::rows];
  std::uint64_t kv_full, q_full[S::stages], q_empty[S::stages], d_o_full[S::stages], d_o_empty[S::stages];
  int block;
};

struct BackwardMaps {
  CUtensorMap q, k, v, d_o, d_k, d_v;  // boxes of 64 columns and 64 rows, of K and V 128
};

// The kernels' parameters besides the maps. Rows of a head are padded to whole tiles of 64 in what has no strides.
template <class Mask>
struct Backward {
  Mask mask;
  Dense lengths;
  float scale;  // of scores
  int heads, kv_heads, sequences;
  const bf16 *o, *d_o;
  Strides o_strides, d_o_strides;
  const float* log_sums;  // of the forward kernel, natural
  Strides log_sum_strides;
  bf16* d_q;
  Strides d_q_strides;
  // Scratch: by [sequence][head][row], what log2 of a row's sum is and what its products with dO are less; dQ in fp32, in the
  // order of the fragments; how often its chunks have been added to; and how many blocks have begun.
  float *padded_log_sums, *deltas, *d_q_sums;
  unsigned *added, *begun;

  __host__ __device__ int row_tiles() const { return (lengths.queries + 63) / 64; }
  __host__ __device__ int key_tiles() const { return (lengths.keys + tile_keys - 1) / tile_keys; }
  __device__ __forceinline__ std::size_t tile(int sequence, int head, int row_tile) const {
    return (static_cast<std::size_t>(sequence) * heads + head) * row_tiles() + row_tile;
  }
};

// A tile of 64 rows against one of 128 keys: whether any row sees any key, and whether each sees all.
struct Seen {
  bool any, all;
};
template <class Mask>
__device__ __forceinline__ Seen seen_of(const Mask& mask, int first_row, int first_key, const Lengths& lengths) {
  const int end_row = first_row + 64 < lengths.queries ? first_row + 64 : lengths.queries;
  const Span of_first = mask.keys_of(first_row, lengths), of_last = mask.keys_of(end_row - 1, lengths);
  const int end_key = first_key + tile_keys;
  return {of_last.end > first_key && of_first.begin < end_key && of_last.end > of_first.begin,
          of_last.begin <= first_key && of_first.end >= end_key};
}

// A block has the keys of one tile and one KV head, and takes the rows of all query heads of its group. A policy says which they
// are; blocks begin in the order of their numbers.
struct KeyBlock {
  int sequence, kv_head, first_key;
};
// All of a head, then the next: few heads at a time, whose rows stay in L2.
struct HeadsInTurn {
  template <class Work>
  __device__ __forceinline__ static KeyBlock block(const Work& work, int number) {
    const int head = number / work.key_tiles();
    return {head / work.kv_heads, head % work.kv_heads, number % work.key_tiles() * tile_keys};
  }
};
// The first keys of all heads, then the next ones: with a causal mask those that most rows see, so that the last blocks are
// short.
struct FirstKeysFirst {
  template <class Work>
  __device__ __forceinline__ static KeyBlock block(const Work& work, int number) {
    const int heads = work.kv_heads * work.sequences, head = number % heads;
    return {head / work.kv_heads, head % work.kv_heads, number / heads * tile_keys};
  }
};

// act(head, tile of rows, whether it must be tested) for what the block takes, in order.
template <class Work, class Act>
__device__ __forceinline__ void each_row_tile(const Work& work, const KeyBlock& block, Act act) {
  const Lengths lengths = work.lengths.lengths(block.sequence);
  const int group = work.heads / work.kv_heads;
  for (int head = block.kv_head * group; head < (block.kv_head + 1) * group; ++head)
    for (int tile = 0; tile < work.row_tiles(); ++tile) {
      const Seen seen = seen_of(work.mask, tile * 64, block.first_key, lengths);
      if (seen.any) act(head, tile, !seen.all);
    }
}

template <class S>
__device__ __forceinline__ void initialize(BackwardShared<S>& shared) {
  if (threadIdx.x == 0) {
    constexpr unsigned warps = 2 * warpgroup / 32;
    device::barrier_init(&shared.kv_full, 1);
    for (int i = 0; i < S::stages; ++i) {
      device::barrier_init(&shared.q_full[i], 1);
      device::barrier_init(&shared.d_o_full[i], 1);
      device::barrier_init(&shared.q_empty[i], warps);
      device::barrier_init(&shared.d_o_empty[i], warps);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
}

// One thread keeps the ring of rows full.
template <class S, class Work>
__device__ __forceinline__ void produce(BackwardShared<S>& shared, const BackwardMaps& maps, const Work& work,
                                        const KeyBlock& block) {
  device::barrier_arrive_expect(&shared.kv_full, sizeof(shared.k) + sizeof(shared.v));
  for (int i = 0; i < S::boxes; ++i) {
    device::tensor_load_4d(shared.k[i], &maps.k, i * 64, block.first_key, block.kv_head, block.sequence, &shared.kv_full);
    device::tensor_load_4d(shared.v[i], &maps.v, i * 64, block.first_key, block.kv_head, block.sequence, &shared.kv_full);
  }
  Step<S::stages> step;
  each_row_tile(work, block, [&](int head, int tile, bool) {
    const unsigned slot = step.slot(), free = step.parity() ^ 1;
    const std::size_t row = work.tile(block.sequence, head, tile) * S::rows;
    const auto load = [&](bf16(&to)[S::boxes][S::rows * 64], const CUtensorMap& map, float(&values)[S::rows], const float* from,
                          std::uint64_t* full, std::uint64_t* empty) {
      device::barrier_wait(empty, free);
      device::barrier_arrive_expect(full, sizeof(to) + sizeof(values));
      for (int i = 0; i < S::boxes; ++i) device::tensor_load_4d(to[i], &map, i * 64, tile * S::rows, head, block.sequence, full);
      device::bulk_load(values, from + row, sizeof(values), full);
    };
    load(shared.q[slot], maps.q, shared.log_sums[slot], work.padded_log_sums, &shared.q_full[slot], &shared.q_empty[slot]);
    load(shared.d_o[slot], maps.d_o, shared.deltas[slot], work.deltas, &shared.d_o_full[slot], &shared.d_o_empty[slot]);
    ++step.count;
  });
}

constexpr int backward_side_threads = 128;

// The products of eight bf16 each, added up.
__device__ __forceinline__ float dot_of_8(const uint4& a, const uint4& b) {
  const unsigned x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
    sum = fmaf(__uint_as_float(x[i] & 0xFFFF0000), __uint_as_float(y[i] & 0xFFFF0000), sum);
  }
  return sum;
}

// Before the backward kernel, a block for each tile of 64 rows (blockIdx.x), head and sequence: the sum of O dO of each row,
// zeros in dQ's sums. A row that saw nothing, or does not exist, gets a log-sum-exp that makes its weights 0.
template <int head_size, class Mask>
__global__ __launch_bounds__(backward_side_threads) void backward_begin(const __grid_constant__ Backward<Mask> work) {
  constexpr int lanes = head_size / 8, step = backward_side_threads / lanes;  // of a row; rows that the block takes at once
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const std::size_t tile = work.tile(sequence, head, static_cast<int>(blockIdx.x));
  const bf16* const o = work.o + sequence * work.o_strides.sequence + head * work.o_strides.head + t % lanes * 8;
  const bf16* const d_o = work.d_o + sequence * work.d_o_strides.sequence + head * work.d_o_strides.head + t % lanes * 8;
#pragma unroll 4
  for (int i = t / lanes; i < 64; i += step) {
    const int row = static_cast<int>(blockIdx.x) * 64 + i;
    float sum = 0, log_sum = infinity;
    if (row < work.lengths.queries) {
      sum = dot_of_8(*reinterpret_cast<const uint4*>(o + row * work.o_strides.row),
                     *reinterpret_cast<const uint4*>(d_o + row * work.d_o_strides.row));
      const float natural = work.log_sums[sequence * work.log_sum_strides.sequence + head * work.log_sum_strides.head +
                                          row * work.log_sum_strides.row];
      if (natural != -infinity) log_sum = natural * log2_e;
    }
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (t % lanes != 0) continue;
    work.padded_log_sums[tile * 64 + i] = log_sum;
    work.deltas[tile * 64 + i] = sum;
  }
  constexpr int of_tile = 64 * head_size;
  for (int i = t * 4; i < of_tile; i += backward_side_threads * 4)
    *reinterpret_cast<float4*>(work.d_q_sums + tile * of_tile + i) = float4{0, 0, 0, 0};
  if (t < BackwardShape<head_size>::chunks) work.added[tile * BackwardShape<head_size>::chunks + t] = 0;
  if (tile == 0 && t == 0) *work.begun = 0;
}

// Behind it, on the same grid: dQ from its sums.
template <int head_size, class Mask>
__global__ __launch_bounds__(backward_side_threads) void backward_end(const __grid_constant__ Backward<Mask> work) {
  using S = BackwardShape<head_size>;
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const std::size_t tile = work.tile(sequence, head, static_cast<int>(blockIdx.x));
  bf16* const to = work.d_q + sequence * work.d_q_strides.sequence + head * work.d_q_strides.head;
  const int row = static_cast<int>(blockIdx.x) * 64 + t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
#pragma unroll
  for (int i = 0; i < head_size / 8; ++i) {
    const float4 sums = *reinterpret_cast<const float4*>(work.d_q_sums + (tile * S::chunks + i / 8) * S::chunk_elements +
                                                         (i % 8 * warpgroup + t) * 4);
    const unsigned words[2] = {device::narrow_bf16(sums.x * work.scale, sums.y * work.scale),
                               device::narrow_bf16(sums.z * work.scale, sums.w * work.scale)};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + half * 8 < work.lengths.queries)
        *reinterpret_cast<unsigned*>(to + (row + half * 8) * work.d_q_strides.row + i * 8 + column) = words[half];
  }
}

}  // namespace aisp::attention
