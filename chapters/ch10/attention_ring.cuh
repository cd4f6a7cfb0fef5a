// SPDX-License-Identifier: Apache-2.0
// The parts of attention on wgmma: a ring of K and V tiles in shared memory that one thread fills by TMA, and what a consumer
// warpgroup does with them. In which order is the pair's subject.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>

#include "online_softmax.cuh"

namespace aisp::ch10::attention {

using device::Major;
constexpr int consumers = 2, stages = 2, warpgroup = 128;
constexpr int query_rows = 64, block_rows = consumers * query_rows, keys = 128;  // of a warpgroup, of a block, of a tile
constexpr int halves = head_size / 64;                                           // boxes are 64 columns wide: 128 bytes

struct Shared {
  alignas(1024) bf16 q[consumers][halves][query_rows * 64], o[consumers][halves][query_rows * 64];
  bf16 k[stages][halves][keys * 64], v[stages][halves][keys * 64];
  int block;  // that Q is of, or none; atomic, as racecheck does not see that q_full and q_empty order it
  std::uint64_t q_full, q_empty, k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
};
constexpr unsigned q_bytes = sizeof(Shared::q), tile_bytes = sizeof(Shared::k) / stages;

struct Maps {
  CUtensorMap q, k, v, o;  // boxes of 64 columns: 64 rows of Q and O, 128 of K and V
};

// The blocks of rows, and how many tiles of keys each takes: all of its head, or with a causal mask those up to its own, the last
// one masked in part. Then the blocks are unequal, and whichever SM is done first takes the next one.
template <bool causal>
struct Work {
  static_assert(keys == block_rows);
  int blocks, of_a_head;
  unsigned* taken;  // how many were, besides the first of each block of threads; zero before and after the kernel

  static constexpr int none = -1;
  __device__ int tiles(int block) const { return causal ? block % of_a_head + 1 : of_a_head; }
  __device__ int block(int turn) const { return turn < blocks ? block_in_order(causal, turn, blocks, of_a_head) : none; }
  __device__ int next(int turn) const {
    const int grid = static_cast<int>(gridDim.x);
    if constexpr (!causal) return turn + grid;
    const int before = static_cast<int>(atomicAdd(taken, 1));
    if (before == blocks - 1) *taken = 0;  // every block of threads has now asked in vain once
    return grid + before;
  }
};

// Counts the tiles that went through a ring of stages.
struct Step {
  unsigned count = 0;
  __device__ unsigned slot() const { return count % stages; }
  __device__ unsigned parity() const { return count / stages % 2; }
};

// Before anything else, by all threads.
__device__ __forceinline__ void initialize(Shared& shared) {
  if (threadIdx.x == 0) {
    constexpr unsigned warps = consumers * warpgroup / 32;
    device::barrier_init(&shared.q_full, 1);
    device::barrier_init(&shared.q_empty, warps);
    for (int i = 0; i < stages; ++i) {
      device::barrier_init(&shared.k_full[i], 1);
      device::barrier_init(&shared.v_full[i], 1);
      device::barrier_init(&shared.k_empty[i], warps);
      device::barrier_init(&shared.v_empty[i], warps);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
}

// One thread says which block of rows is next and keeps the ring full: of each the last tile of keys first, since that is the one
// with a mask.
template <bool causal>
__device__ inline void produce(Shared& shared, const Maps& maps, const Work<causal>& work) {
  Step step;
  const auto load = [&](bf16(&to)[halves][keys * 64], const CUtensorMap& map, int row, std::uint64_t* full,
                        std::uint64_t* empty) {
    device::barrier_wait(empty, step.parity() ^ 1);
    device::barrier_arrive_expect(full, tile_bytes);
    for (int half = 0; half < halves; ++half) device::tensor_load_2d(to[half], &map, half * 64, row, full);
  };
  int turn = static_cast<int>(blockIdx.x);
  for (int round = 0;; ++round) {
    const int block = work.block(turn);
    device::barrier_wait(&shared.q_empty, round % 2 ^ 1);
    if constexpr (causal) atomicExch(&shared.block, block);
    if (block == work.none) break;
    device::barrier_arrive_expect(&shared.q_full, q_bytes);
    for (int i = 0; i < consumers * halves; ++i)
      device::tensor_load_2d(shared.q[i / halves][i % halves], &maps.q, i % halves * 64,
                             block * block_rows + i / halves * query_rows, &shared.q_full);
    const int first_key = block / work.of_a_head * work.of_a_head * keys;
    for (int tile = work.tiles(block) - 1; tile >= 0; --tile, ++step.count) {
      const unsigned slot = step.slot();
      const int key = first_key + tile * keys;
      load(shared.k[slot], maps.k, key, &shared.k_full[slot], &shared.k_empty[slot]);
      load(shared.v[slot], maps.v, key, &shared.v_full[slot], &shared.v_empty[slot]);
    }
    turn = work.next(turn);
  }
  device::barrier_arrive(&shared.q_full);
}

// A consumer warpgroup's view of the block's shared memory, and its registers.
struct Consumer {
  Shared& shared;
  int index;  // of the warpgroup
  Step step;
  float scores[keys / 2], sums[head_size / 2];
  unsigned p[keys / 16][4], q[head_size / 16][4];

  __device__ __forceinline__ static void release(std::uint64_t* empty) {
    if (threadIdx.x % 32 == 0) device::barrier_arrive(empty);
  }
  // The block of rows of this round, when its queries have come, or none. Without a mask everybody can tell which it is.
  template <bool causal>
  __device__ __forceinline__ int next_block(const Work<causal>& work, int round) {
    device::barrier_wait(&shared.q_full, round % 2);
    if constexpr (!causal) return work.block(static_cast<int>(blockIdx.x) + round * static_cast<int>(gridDim.x));
    const int block = threadIdx.x % 32 == 0 ? atomicAdd(&shared.block, 0) : 0;  // by the lane that releases Q
    return __shfl_sync(~0u, block, 0);
  }
  // The left operand of a product may come from registers: shared memory then only has to deliver K.
  __device__ __forceinline__ void keep_queries() {
    const int lane = threadIdx.x % 32, row = threadIdx.x % warpgroup / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i)
      device::load_matrices(
          q[i], device::shared_address(shared.q[index][i / 4]) + row * 128 + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16);
  }
  // scores = Q K^T for the 64 rows of this warpgroup. Asynchronous, as the next.
  template <bool kept_queries>
  __device__ __forceinline__ void start_scores(const Step& at) {
    const std::uint64_t from_q = device::operand(shared.q[index]), from_k = device::operand(shared.k[at.slot()]);
    device::wgmma_touch(scores);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i) {
      const std::uint64_t k = device::advance(from_k, i / 4 * keys * 128 + i % 4 * 32);
      if constexpr (kept_queries) device::wgmma<device::Operands::bf16>(scores, q[i], k, i > 0);
      else
        device::wgmma<device::Operands::bf16>(scores, device::advance(from_q, i / 4 * query_rows * 128 + i % 4 * 32), k, i > 0);
    }
    device::wgmma_commit();
  }
  // sums += P V. V lies as it came: its keys are rows, the second product's K.
  __device__ __forceinline__ void start_sums(const Step& at) {
    const std::uint64_t v = device::operand(shared.v[at.slot()], 1024, keys * 128);
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
      device::wgmma<device::Operands::bf16, Major::mn>(sums, p[i], device::advance(v, i * 2048));
    device::wgmma_commit();
  }
  // Hides keys of the first tile, whose first key is the block's first row.
  __device__ __forceinline__ void hide_later_keys() {
    attention::hide_later_keys(scores, index * query_rows + static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 +
                                           static_cast<int>(threadIdx.x) % 32 / 4);
  }
  __device__ __forceinline__ void narrow_scores() {
#pragma unroll
    for (int i = 0; i < keys / 16; ++i) narrow(p[i], scores, i);
  }
  // Normalises the rows and hands them to TMA by way of swizzled shared memory.
  __device__ __forceinline__ void store(const CUtensorMap& map, int row, const Rows& rows) {
    const int t = threadIdx.x % warpgroup, lane = t % 32, lane_row = t / 32 * 16 + lane % 16;
    float factor[2];
    reciprocals(rows, factor);
    rescale(sums, factor);
    if (t == 0) device::wait_stores_read<0>();
    device::named_barrier_sync(3 + index, warpgroup);  // what was stored last has been read
    unsigned words[head_size / 16][4];
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i) {
      narrow(words[i], sums, i);
      device::store_matrices(
          device::shared_address(shared.o[index][i / 4]) + lane_row * 128 + ((i % 4 * 2 + lane / 16) ^ lane_row % 8) * 16,
          words[i][0], words[i][1], words[i][2], words[i][3]);
    }
    device::fence_proxy_async_shared();
    device::named_barrier_sync(3 + index, warpgroup);
    if (t == 0) {
      for (int half = 0; half < halves; ++half) device::tensor_store_2d(&map, half * 64, row, shared.o[index][half]);
      device::commit_stores();
    }
  }
};

}  // namespace aisp::ch10::attention
