// SPDX-License-Identifier: Apache-2.0
// Rows grouped by expert without a sort: a slot's row is where its expert's rows begin, plus the slots before it that chose the
// same expert. Each block ranks a tile of slots and counts its experts; the last block to end adds the counts up. Slots of one
// expert stay in their order, and a slot of expert -1 has no row.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::moe {

inline constexpr int tile_slots = 1024;  // of a block, one for each thread
inline constexpr int most_experts = 512;

struct Slots {
  const int* experts_of;  // [slots]
  int slots, experts;
  int* ranks;      // [slots]: within the tile, among the slots of the same expert
  int* starts;     // [experts][tiles]: the row of the first slot of an expert in a tile
  int* offsets;    // [experts + 1]: where each expert's rows begin
  unsigned* done;  // blocks that have ended; 0 before the kernel and after it
};

__host__ __device__ inline int tiles_of(int slots) { return (slots + tile_slots - 1) / tile_slots; }

// A slot's row, or -1, after rank_slots_kernel.
__device__ inline int row_of(const Slots& at, int slot) {
  const int expert = at.experts_of[slot];
  return expert < 0 ? -1 : at.starts[expert * tiles_of(at.slots) + slot / tile_slots] + at.ranks[slot];
}

namespace detail {

__device__ inline int sum_of_lanes_before(int value, int& total) {
  int through = value;
#pragma unroll
  for (int offset = 1; offset < device::warp_size; offset *= 2) {
    const int below = __shfl_up_sync(device::whole_warp, through, offset);
    if (threadIdx.x % device::warp_size >= offset) through += below;
  }
  total = __shfl_sync(device::whole_warp, through, device::warp_size - 1);
  return through - value;
}

// Makes each of `count` numbers the sum of those before it, by one block of tile_slots threads.
__device__ inline void scan(int* numbers, int count) {
  __shared__ int of_warps[tile_slots / device::warp_size];
  const int lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const int each = (count + tile_slots - 1) / tile_slots;
  const int first = min(static_cast<int>(threadIdx.x) * each, count), last = min(first + each, count);
  int sum = 0, of_warp, of_block;
  for (int i = first; i < last; ++i) sum += __ldcg(numbers + i);
  int before = sum_of_lanes_before(sum, of_warp);
  if (lane == 0) of_warps[warp] = of_warp;
  __syncthreads();
  before += __shfl_sync(device::whole_warp, sum_of_lanes_before(of_warps[lane], of_block), warp);
  for (int i = first; i < last; ++i) {
    const int number = __ldcg(numbers + i);
    numbers[i] = before;
    before += number;
  }
}

__device__ inline bool is_last_block(unsigned* done) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(done, 1u) == gridDim.x - 1;
  __syncthreads();
  return is_last;
}

}  // namespace detail

// tiles_of(slots) blocks of tile_slots threads.
static __global__ __launch_bounds__(tile_slots) void rank_slots_kernel(Slots at) {
  constexpr int warps = tile_slots / device::warp_size;
  __shared__ unsigned short counts[warps][most_experts];  // of each warp; then the tile's slots before that warp
  const int lane = threadIdx.x % device::warp_size, warp = threadIdx.x / device::warp_size;
  const int tile = static_cast<int>(blockIdx.x), tiles = static_cast<int>(gridDim.x);
  for (int expert = lane; expert < at.experts; expert += device::warp_size) counts[warp][expert] = 0;
  __syncwarp();
  const int slot = tile * tile_slots + static_cast<int>(threadIdx.x);
  const int expert = slot < at.slots ? at.experts_of[slot] : -1;
  const unsigned peers = __match_any_sync(device::whole_warp, expert), lanes_before = (1u << lane) - 1;
  const int before = __popc(peers & lanes_before);
  if (expert >= 0 && before == 0) counts[warp][expert] = static_cast<unsigned short>(__popc(peers));
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += tile_slots) {
    int sum = 0;
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      const int count = counts[w][e];
      counts[w][e] = static_cast<unsigned short>(sum);
      sum += count;
    }
    at.starts[e * tiles + tile] = sum;
  }
  __syncthreads();
  if (expert >= 0) at.ranks[slot] = counts[warp][expert] + before;
  if (!detail::is_last_block(at.done)) return;
  const int all = at.experts * tiles;
  int rows = 0;
  if (threadIdx.x == 0) rows = __ldcg(at.starts + all - 1);  // of the last expert in the last tile
  __syncthreads();
  detail::scan(at.starts, all);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < at.experts; e += tile_slots) at.offsets[e] = at.starts[e * tiles];
  if (threadIdx.x > 0) return;
  at.offsets[at.experts] = at.starts[all - 1] + rows;
  *at.done = 0;
}

// Writes both maps between slots and rows. tiles_of(slots) blocks of tile_slots threads.
static __global__ __launch_bounds__(tile_slots) void place_slots_kernel(Slots at, int* slot_of_row, int* row_of_slot) {
  const int slot = static_cast<int>(blockIdx.x * tile_slots + threadIdx.x);
  if (slot >= at.slots) return;
  const int row = row_of(at, slot);
  row_of_slot[slot] = row;
  if (row >= 0) slot_of_row[row] = slot;
}

}  // namespace aisp::moe
