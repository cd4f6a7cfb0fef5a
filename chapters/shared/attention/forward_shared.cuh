// SPDX-License-Identifier: Apache-2.0
// The forward kernel's tiles in shared memory, and the warp that fills them by TMA.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>

#include "mask.cuh"
#include "order.cuh"
#include "score.cuh"

namespace aisp::attention {

// Queries and keys have head_size columns, values and results value_size. Two warpgroups have 64 query rows each.
template <int head_size_, int value_size_>
struct Shape {
  static_assert(head_size_ % 64 == 0 && (value_size_ == 64 || value_size_ == 128) && value_size_ <= head_size_);
  static constexpr int head_size = head_size_, value_size = value_size_;
  static constexpr int consumers = 2, query_rows = 64, block_rows = consumers * query_rows;
  static constexpr int head_boxes = head_size / 64, value_boxes = value_size / 64;  // boxes are 64 columns wide: 128 bytes
  static constexpr int stages = head_size <= 64 ? 4 : 2;
  // Registers hold Q if sums and scores leave room, which spares reading it from shared memory in every tile.
  static constexpr bool queries_in_registers = head_size <= 128;
  // Results take the place of queries if shared memory has no room for both.
  static constexpr bool results_over_queries = head_size > 128;
};

constexpr int warpgroup = 128, forward_threads = 3 * warpgroup;

template <class S, bool apart>
struct Results {
  bf16 o[S::consumers][S::value_boxes][S::query_rows * 64];
};
template <class S>
struct Results<S, false> {};

template <class S>
struct alignas(1024) Shared : Results<S, !S::results_over_queries> {
  alignas(1024) bf16 q[S::consumers][S::head_boxes][S::query_rows * 64];
  bf16 k[S::stages][S::head_boxes][tile_keys * 64], v[S::stages][S::value_boxes][tile_keys * 64];
  int turn;  // that Q is of, or none; atomic, as racecheck does not see that q_full and q_empty order it
  std::uint64_t q_full, q_empty, tail_full;
  std::uint64_t k_full[S::stages], k_empty[S::stages], v_full[S::stages], v_empty[S::stages];
  static constexpr int none = -1;

  // Returns the place of consumer `index`'s results.
  __device__ __forceinline__ bf16 (*results(int index))[S::query_rows * 64] {
    if constexpr (S::results_over_queries) return q[index];
    else return this->o[index];
  }
};

struct Maps {
  CUtensorMap q, k, v, o;  // boxes of 64 columns: 64 rows of Q and O, Keys::box_rows of K and V
};

struct Strides {
  std::size_t row, head, sequence;  // in elements
};

// The kernel's parameters besides the maps.
template <class Mask, class Keys, class Score, class Order>
struct Forward {
  using MaskType = Mask;
  using KeysType = Keys;
  Mask mask;
  Keys keys;
  Score score;
  Order order;
  int group;  // query heads to a head of K and V
  bf16* o;    // where rows go that TMA must not write, being next to another sequence's; as o's map has it
  Strides o_strides;
  float* log_sums;  // natural logarithms of the sums of exponentials
  Strides log_sum_strides;
};

// Counts the tiles that went through a ring of stages.
template <int stages>
struct Step {
  unsigned count = 0;
  __device__ __forceinline__ unsigned slot() const { return count % stages; }
  __device__ __forceinline__ unsigned parity() const { return count / stages % 2; }
};

// Before anything else, by all threads.
template <class S>
__device__ __forceinline__ void initialize(Shared<S>& shared) {
  if (threadIdx.x == 0) {
    constexpr unsigned warps = S::consumers * warpgroup / 32;
    device::barrier_init(&shared.q_full, 1);
    device::barrier_init(&shared.q_empty, warps);
    device::barrier_init(&shared.tail_full, 1);
    for (int i = 0; i < S::stages; ++i) {
      device::barrier_init(&shared.k_full[i], 1);
      device::barrier_init(&shared.v_full[i], 1);
      device::barrier_init(&shared.k_empty[i], warps);
      device::barrier_init(&shared.v_empty[i], warps);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
}

// The producer's view of the tile of keys that it loads.
struct TileLoad {
  int first_key, keys;  // of the tile, and how many it has
  int kv_head, lane;
  Place place;  // of the lane's box
};

// Boxes from the tile's first key to its last one, lane i the i-th of each 64 columns. True for rows after the last key that no
// box has brought, or that are not this sequence's.
template <class Keys, int boxes>
__device__ __forceinline__ void load_boxes(bf16 (&to)[boxes][tile_keys * 64], const CUtensorMap& map, const TileLoad& tile,
                                           std::uint64_t* full) {
  const int of_tile = (tile.keys + Keys::box_rows - 1) / Keys::box_rows;
  if (tile.lane == 0) device::barrier_arrive_expect(full, static_cast<unsigned>(of_tile * boxes * Keys::box_rows * 128));
  __syncwarp();
  if (tile.lane < of_tile)
    for (int i = 0; i < boxes; ++i)
      device::tensor_load_4d(to[i] + tile.lane * Keys::box_rows * 64, &map, i * 64, tile.place.row, tile.kv_head,
                             tile.place.sequence, full);
}

// Rows of a tile of values from `valid` on, by a warp.
template <int boxes>
__device__ __forceinline__ void clear_rows(bf16 (&values)[boxes][tile_keys * 64], int valid, int lane) {
  for (int i = 0; i < boxes; ++i)
    for (int chunk = valid * 8 + lane; chunk < tile_keys * 8; chunk += 32)
      reinterpret_cast<uint4*>(values[i])[chunk] = uint4{0, 0, 0, 0};
  device::fence_proxy_async_shared();
  __syncwarp();
}

// One warp says which block of rows is next and keeps the ring full.
template <class S, class Work>
__device__ __forceinline__ void produce(Shared<S>& shared, const Maps& maps, const Work& work) {
  using Keys = typename Work::KeysType;
  const int lane = static_cast<int>(threadIdx.x) % 32, turns = work.order.turns();
  Step<S::stages> step;
  unsigned tails = 0, rounds = 0;
  const auto next = [&](int turn) {
    int following = 0;
    if (lane == 0) following = work.order.next(turn);
    return __shfl_sync(~0u, following, 0);
  };
  for (int turn = static_cast<int>(blockIdx.x); turn < turns; turn = next(turn)) {
    const RowBlock block = work.order.at(turn, S::block_rows);
    const Lengths lengths = work.keys.lengths(block.sequence);
    if (block.first_row >= lengths.queries) continue;
    device::barrier_wait(&shared.q_empty, rounds++ % 2 ^ 1);
    if (lane == 0) {
      atomicExch(&shared.turn, turn);
      device::barrier_arrive_expect(&shared.q_full, sizeof(shared.q));
      const Place first = work.keys.query(block.sequence, block.first_row);
      for (int i = 0; i < S::consumers * S::head_boxes; ++i)
        device::tensor_load_4d(shared.q[i / S::head_boxes][i % S::head_boxes], &maps.q, i % S::head_boxes * 64,
                               first.row + i / S::head_boxes * S::query_rows, block.head, first.sequence, &shared.q_full);
    }
    const auto tiles = tiles_of(work.mask, block.sequence, block.head, block.first_row, S::block_rows, lengths);
    for (int i = 0; i < tiles.count; ++i, ++step.count) {
      TileLoad tile{tiles.index(i) * tile_keys, 0, block.head / work.group, lane, {}};
      const int left = lengths.keys - tile.first_key;
      tile.keys = left < tile_keys ? left : tile_keys;
      if (lane * Keys::box_rows < tile.keys) tile.place = work.keys.key(block.sequence, tile.first_key + lane * Keys::box_rows);
      const unsigned slot = step.slot(), free = step.parity() ^ 1;
      device::barrier_wait(&shared.k_empty[slot], free);
      load_boxes<Keys>(shared.k[slot], maps.k, tile, &shared.k_full[slot]);
      device::barrier_wait(&shared.v_empty[slot], free);
      if (Keys::clips_keys || tile.keys == tile_keys) load_boxes<Keys>(shared.v[slot], maps.v, tile, &shared.v_full[slot]);
      else {
        load_boxes<Keys>(shared.v[slot], maps.v, tile, &shared.tail_full);
        device::barrier_wait(&shared.tail_full, tails++ % 2);
        clear_rows(shared.v[slot], tile.keys, lane);
        if (lane == 0) device::barrier_arrive(&shared.v_full[slot]);
      }
    }
  }
  device::barrier_wait(&shared.q_empty, rounds % 2 ^ 1);
  if (lane == 0) {
    atomicExch(&shared.turn, Shared<S>::none);
    device::barrier_arrive(&shared.q_full);
  }
}

}  // namespace aisp::attention
