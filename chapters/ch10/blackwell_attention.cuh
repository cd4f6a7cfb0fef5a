// SPDX-License-Identifier: Apache-2.0
// NOT RUN: compiled for sm_100a and sm_103a, no such GPU was at hand. Attention on Blackwell's tensor cores. A block has 256
// queries, 128 for each of two warpgroups; a thread has a row, so that its maximum and sum need no other thread. One thread loads
// by TMA, one starts all products, whose results stay in tensor memory: while one warpgroup exponentiates, the other's products
// run.
#pragma once
#include <aisp/check.hpp>
#include <aisp/device/exponential.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/tcgen05.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/needs.hpp>

#include "gemm_pipeline.cuh"
#include "online_softmax.cuh"

namespace aisp::ch10::blackwell_attention {

using attention::bf16, attention::head_size, attention::score_scale;

inline constexpr Needs needs{.min_sm = 100, .tcgen05 = true};

constexpr int groups = 2, warpgroup = 128, rows = 128, keys = 128,
              halves = head_size / 64;  // boxes are 64 columns wide: 128 bytes
constexpr int block_rows = groups * rows, stages = 3;
constexpr int loading_warp = 8, multiplying_warp = 9, threads = 32 * 10;

using Tile = bf16[halves][rows * 64];
constexpr unsigned tile_bytes = sizeof(Tile);

// K and V of a tile of keys are two items of one ring: K, V, K, V. A warpgroup's weights lie where its results are put at the
// end.
struct Shared {
  alignas(1024) Tile q[groups], weights[groups], ring[stages];
  std::uint64_t q_full, full[stages], empty[stages], scores_full[groups], weights_full[groups];
  std::uint32_t tensor_memory;
};

struct Maps {
  CUtensorMap q, k, v, o;  // boxes of 128 rows of 64 columns
};

// Columns of tensor memory: scores of both warpgroups, then their sums.
__device__ __forceinline__ std::uint32_t scores_of(std::uint32_t memory, int group) {
  return memory + static_cast<std::uint32_t>(group * keys);
}
__device__ __forceinline__ std::uint32_t sums_of(std::uint32_t memory, int group) {
  return memory + static_cast<std::uint32_t>(groups * keys + group * head_size);
}

struct Ring {
  static constexpr int stages = blackwell_attention::stages;
};
using Cursor = gemm::Cursor<Ring>;

__device__ __forceinline__ void initialize(Shared& shared) {
  device::barrier_init(&shared.q_full, 1);
  for (int i = 0; i < stages; ++i) {
    device::barrier_init(&shared.full[i], 1);
    device::barrier_init(&shared.empty[i], 1);
  }
  for (int i = 0; i < groups; ++i) {
    device::barrier_init(&shared.scores_full[i], 1);
    device::barrier_init(&shared.weights_full[i], warpgroup);
  }
  device::fence_barrier_init();
}

__device__ __forceinline__ void load_tile(Tile& to, const CUtensorMap& map, int row, std::uint64_t* full) {
  for (int half = 0; half < halves; ++half) device::tensor_load_2d(to[half], &map, half * 64, row, full);
}

// By one thread.
__device__ __forceinline__ void load(Shared& shared, const Maps& maps, int first_row, int length) {
  device::barrier_arrive_expect(&shared.q_full, groups * tile_bytes);
  for (int group = 0; group < groups; ++group) load_tile(shared.q[group], maps.q, first_row + group * rows, &shared.q_full);
  Cursor at;
  const int first_key = first_row / length * length;
  for (int key = first_key; key < first_key + length; key += keys)
    for (const CUtensorMap* map : {&maps.k, &maps.v}) {
      device::barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
      device::barrier_arrive_expect(&shared.full[at.stage], tile_bytes);
      load_tile(shared.ring[at.stage], *map, key, &shared.full[at.stage]);
      at.next();
    }
  for (int i = 0; i < stages; ++i, at.next()) device::barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
}

// scores = Q K^T: both lie along the columns of a head.
__device__ __forceinline__ void multiply_scores(Shared& shared, std::uint32_t memory, int group, int slot) {
  constexpr std::uint32_t instruction = device::tensor_instruction(device::TensorKind::bf16, rows, keys);
  const std::uint64_t q = device::tensor_operand(shared.q[group]), k = device::tensor_operand(shared.ring[slot]);
#pragma unroll
  for (int i = 0; i < head_size / 16; ++i) {
    const unsigned to = i / 4 * sizeof(Tile) / halves + i % 4 * 32;
    device::tensor_multiply<device::TensorKind::bf16>(scores_of(memory, group), device::advance(q, to), device::advance(k, to),
                                                      instruction, i > 0);
  }
}

// sums += weights V. V lies as it came: its keys are rows, this product's K.
__device__ __forceinline__ void multiply_sums(Shared& shared, std::uint32_t memory, int group, int slot, bool add) {
  constexpr std::uint32_t instruction = device::tensor_instruction(device::TensorKind::bf16, rows, head_size, false, true);
  const std::uint64_t weights = device::tensor_operand(shared.weights[group]),
                      v = device::tensor_operand(shared.ring[slot], 1024, sizeof(Tile) / halves);
#pragma unroll
  for (int i = 0; i < keys / 16; ++i)
    device::tensor_multiply<device::TensorKind::bf16>(sums_of(memory, group),
                                                      device::advance(weights, i / 4 * sizeof(Tile) / halves + i % 4 * 32),
                                                      device::advance(v, i * 16 * 128), instruction, add || i > 0);
}

// By one thread. A warpgroup's next scores are queued right after its sums: when they are there, all earlier products are done,
// so that weights can be overwritten and sums be rescaled. The last sums are announced in the same way.
__device__ __forceinline__ void multiply(Shared& shared, std::uint32_t memory, int tiles) {
  Cursor at;
  device::barrier_wait(&shared.q_full, 0);
  device::barrier_wait(&shared.full[at.stage], at.phase);
  for (int group = 0; group < groups; ++group) {
    multiply_scores(shared, memory, group, at.stage);
    device::tensor_commit(&shared.scores_full[group]);
  }
  device::tensor_commit(&shared.empty[at.stage]);
  at.next();
  for (int tile = 0; tile < tiles; ++tile) {
    const int v = at.stage;
    device::barrier_wait(&shared.full[v], at.phase);
    at.next();
    const int k = at.stage;
    const bool last = tile + 1 == tiles;
    if (!last) {
      device::barrier_wait(&shared.full[k], at.phase);
      at.next();
    }
    for (int group = 0; group < groups; ++group) {
      device::barrier_wait(&shared.weights_full[group], static_cast<unsigned>(tile) % 2);
      device::tensor_fence_after();
      multiply_sums(shared, memory, group, v, tile > 0);
      if (!last) multiply_scores(shared, memory, group, k);
      device::tensor_commit(&shared.scores_full[group]);
    }
    device::tensor_commit(&shared.empty[v]);
    if (!last) device::tensor_commit(&shared.empty[k]);
  }
}

// 32 columns of this thread's row, from column `first` on, to a tile with the swizzle of TMA.
__device__ __forceinline__ void put(Tile& tile, int row, int first, const float (&v)[32]) {
  unsigned char* const to = reinterpret_cast<unsigned char*>(tile[first / 64]) + row * 128;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* const x = v + 8 * i;
    const uint4 packed = {device::narrow_bf16(x[0], x[1]), device::narrow_bf16(x[2], x[3]), device::narrow_bf16(x[4], x[5]),
                          device::narrow_bf16(x[6], x[7])};
    *reinterpret_cast<uint4*>(to + ((first % 64 / 8 + i) ^ row % 8) * 16) = packed;
  }
}

// A thread's state of its row.
struct Row {
  float maximum = -INFINITY, sum = 0;
};

// A maximum may be outgrown by up to 2^8 before anything is rescaled: what exponentials are taken relative to cancels in the end.
// The first maximum is taken as it is, since there are no sums yet.
__device__ __forceinline__ void raise(Row& row, float highest, std::uint32_t sums, bool first) {
  constexpr float slack = 8 / score_scale;
  if (!__any_sync(~0u, highest > row.maximum + slack)) return;
  const float raised = fmaxf(row.maximum, highest);
  const float factor = device::exp2_approximate((row.maximum - raised) * score_scale);
  row.maximum = raised;
  row.sum *= factor;
  if (first) return;
#pragma unroll 1
  for (std::uint32_t column = 0; column < head_size; column += 32) {
    float part[32];
    device::tensor_load(part, sums + column);
    device::tensor_wait_loaded(part);
#pragma unroll
    for (float& x : part) x *= factor;
    device::tensor_store(sums + column, part);
  }
  device::tensor_wait_stored();
}

__device__ __forceinline__ float highest_of(std::uint32_t scores) {
  float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (std::uint32_t column = 0; column < keys; column += 64) {
    float first[32], second[32];
    device::tensor_load(first, scores + column);
    device::tensor_load(second, scores + column + 32);
    device::tensor_wait_loaded(first, second);
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      highest[0] = fmaxf(highest[0], first[j]);
      highest[1] = fmaxf(highest[1], second[j]);
    }
  }
  return fmaxf(highest[0], highest[1]);
}

__device__ __forceinline__ float exponentials(float (&scores)[32], float offset) {
  float sum = 0;
#pragma unroll
  for (float& x : scores) {
    x = device::exp2_approximate(fmaf(x, score_scale, -offset));
    sum += x;
  }
  return sum;
}

// One tile of keys: scores to weights. The scores are fetched twice: tensor memory is nearer than registers are plenty.
__device__ __forceinline__ void exponentiate(Shared& shared, int group, int row_index, Row& row, std::uint32_t scores,
                                             std::uint32_t sums, bool first_tile) {
  raise(row, highest_of(scores), sums, first_tile);
  const float offset = row.maximum * score_scale;
#pragma unroll
  for (int column = 0; column < keys; column += 64) {
    float first[32], second[32];
    device::tensor_load(first, scores + static_cast<std::uint32_t>(column));
    device::tensor_load(second, scores + static_cast<std::uint32_t>(column + 32));
    device::tensor_wait_loaded(first, second);
    row.sum += exponentials(first, offset);
    put(shared.weights[group], row_index, column, first);
    row.sum += exponentials(second, offset);
    put(shared.weights[group], row_index, column + 32, second);
  }
}

// By a warpgroup of 128 threads, one of which stores.
__device__ __forceinline__ void attend(Shared& shared, const Maps& maps, std::uint32_t memory, int group, int first_row,
                                       int tiles) {
  const int t = static_cast<int>(threadIdx.x) % warpgroup;
  const std::uint32_t lanes = static_cast<std::uint32_t>(t / 32 * 32) << 16;
  const std::uint32_t scores = scores_of(memory, group) + lanes, sums = sums_of(memory, group) + lanes;
  Row row;
  for (int tile = 0; tile < tiles; ++tile) {
    device::barrier_wait(&shared.scores_full[group], static_cast<unsigned>(tile) % 2);
    device::tensor_fence_after();
    exponentiate(shared, group, t, row, scores, sums, tile == 0);
    device::fence_proxy_async_shared();
    device::tensor_fence_before();
    device::barrier_arrive(&shared.weights_full[group]);
  }
  device::barrier_wait(&shared.scores_full[group], static_cast<unsigned>(tiles) % 2);
  device::tensor_fence_after();
  const float factor = 1 / row.sum;
#pragma unroll
  for (int column = 0; column < head_size; column += 32) {
    float part[32];
    device::tensor_load(part, sums + static_cast<std::uint32_t>(column));
    device::tensor_wait_loaded(part);
#pragma unroll
    for (float& x : part) x *= factor;
    put(shared.weights[group], t, column, part);
  }
  device::fence_proxy_async_shared();
  device::named_barrier_sync(1 + group, warpgroup);
  if (t != 0) return;
  for (int half = 0; half < halves; ++half)
    device::tensor_store_2d(&maps.o, half * 64, first_row + group * rows, shared.weights[group][half]);
  device::commit_stores();
  device::wait_stores_read<0>();
}

// A block for 256 rows, which belong to one head: `length` is a multiple of 256.
static __global__ __launch_bounds__(threads, 1) void attention_kernel(const __grid_constant__ Maps maps, int length) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), first_row = static_cast<int>(blockIdx.x) * block_rows;
  if (threadIdx.x == 0) initialize(shared);
  if (warp == multiplying_warp) {
    device::tensor_allocate(&shared.tensor_memory, device::tensor_columns);
    device::tensor_allocate_no_more();
  }
  device::tensor_fence_before();
  __syncthreads();
  device::tensor_fence_after();
  const std::uint32_t memory = shared.tensor_memory;
  if (warp < loading_warp) attend(shared, maps, memory, warp / 4, first_row, length / keys);
  else if (device::elect_thread()) {
    if (warp == loading_warp) load(shared, maps, first_row, length);
    else multiply(shared, memory, length / keys);
  }
  __syncwarp();
  device::tensor_fence_before();
  __syncthreads();
  device::tensor_fence_after();
  if (warp == multiplying_warp) device::tensor_free(memory, device::tensor_columns);
}

inline void run(Launch& launch, const bf16* q, const bf16* k, const bf16* v, bf16* o, std::size_t all_rows, int length) {
  const auto map = [&](const bf16* data) { return matrix_map_bf16(data, all_rows, head_size, rows, 64); };
  const Maps maps{map(q), map(k), map(v), map(o)};
  launch(attention_kernel, {static_cast<unsigned>(all_rows / block_rows), threads, sizeof(Shared)}, maps, length);
}

}  // namespace aisp::ch10::blackwell_attention
