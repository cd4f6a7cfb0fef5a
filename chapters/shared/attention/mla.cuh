// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache on wgmma (sm_90a): all query heads share one key of 576 columns for each token, the first 512 of
// which are its value, too. A block has 64 heads of a sequence and a piece of its keys. Two warpgroups have 256 columns of the
// result each; tiles of 64 keys arrive by TMA, once for both products, in three parts: the columns of either result, and those
// of the rotation, whose place takes the tile's weights when its scores are done.
#pragma once
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>

#include "mla_shared.cuh"

namespace aisp::attention {

// A warpgroup's view of the block's shared memory, and its registers.
template <bool in_pairs>
struct MlaConsumer {
  MlaShared& shared;
  const MlaTiles& tiles;
  float scale;
  int index;  // of the warpgroup, and of its part of the columns
  Rows rows;
  float scores[mla_tile / 2], sums[latent_size / 4];
  unsigned p[mla_tile / 16][4];

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  // Of this thread's first row.
  __device__ __forceinline__ static int row() { return thread() / 32 * 16 + thread() % 32 / 4; }
  // So that no register holds what follows from an operand over the loop.
  __device__ __forceinline__ static std::uint64_t asked_again(std::uint64_t operand) {
    asm volatile("" : "+l"(operand));
    return operand;
  }
  __device__ __forceinline__ void wait_full(int slot, int part, int tile) const {
    device::barrier_wait(&shared.full[slot][part], tile / 2 % 2);
  }
  __device__ __forceinline__ void release(int slot, int part) const {
    if (threadIdx.x % 32 != 0) return;
    device::barrier_arrive(&shared.empty[slot][part]);
    if constexpr (in_pairs) device::barrier_arrive_remote_relaxed(&shared.empty[slot][part], device::cluster_rank() ^ 1);
  }
  // scores = Q K^T, as the tile's parts arrive. Asynchronous, as the next two.
  __device__ __forceinline__ void start_scores(int tile) {
    const int slot = tile % 2;
    const std::uint64_t from_q = asked_again(device::operand(shared.q)), from_k = asked_again(device::operand(shared.k[slot]));
    device::wgmma_touch(scores);
#pragma unroll
    for (int part = 0; part < MlaShared::parts; ++part) {
      wait_full(slot, part, tile);
      device::wgmma_fence();
#pragma unroll
      for (int i = 0; i < MlaShared::boxes_of(part) * 4; ++i) {
        const unsigned at = (MlaShared::first_box(part) + i / 4) * mla_box * sizeof(bf16) + i % 4 * 32;
        device::wgmma<device::Operands::bf16>(scores, device::advance(from_q, at), device::advance(from_k, at),
                                              part > 0 || i > 0);
      }
    }
    device::wgmma_commit();
  }
  // sums += P V, with weights from registers, or of the other warpgroup from shared memory.
  template <bool from_registers>
  __device__ __forceinline__ void start_values(int tile) {
    using device::Major;
    const int slot = tile % 2;
    wait_full(slot, index, tile);
    const std::uint64_t v = asked_again(
                            device::operand(shared.k[slot][MlaShared::first_box(index)], 1024, mla_box * sizeof(bf16))),
                        weights = asked_again(device::operand(shared.k[slot][MlaShared::weights]));
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < mla_tile / 16; ++i) {
      if constexpr (from_registers) device::wgmma<device::Operands::bf16, Major::mn>(sums, p[i], device::advance(v, i * 2048));
      else
        device::wgmma<device::Operands::bf16, Major::k, Major::mn>(sums, device::advance(weights, i * 32),
                                                                   device::advance(v, i * 2048));
    }
    device::wgmma_commit();
  }
  template <int pending>
  __device__ __forceinline__ void finish_values() {
    device::wgmma_wait<pending>();
    device::wgmma_touch(sums);
  }
  __device__ __forceinline__ void finish_scores() {
    device::wgmma_wait<0>();
    device::wgmma_touch(scores);
  }
  // True if sums must be multiplied by `factor`.
  __device__ __forceinline__ bool exponentiate(int tile, float (&factor)[2]) {
    if (const int keys = tiles.keys(tile); keys < mla_tile) {
#pragma unroll
      for (int i = 0; i < mla_tile / 2; ++i)
        if (i / 4 * 8 + thread() % 4 * 2 + i % 2 >= keys) scores[i] = -infinity;
    }
    const bool outgrown = online_softmax(scores, rows, scale, factor);
#pragma unroll
    for (int i = 0; i < mla_tile / 16; ++i) narrow(p[i], scores, i);
    return outgrown;
  }
  // Weights and maxima, for the other warpgroup.
  __device__ __forceinline__ void publish(int tile) {
    const int slot = tile % 2, lane = thread() % 32, row_of_lane = thread() / 32 * 16 + lane % 16;
    const std::uint32_t to = device::shared_address(shared.k[slot][MlaShared::weights]) + row_of_lane * 128;
#pragma unroll
    for (int i = 0; i < mla_tile / 16; ++i)
      device::store_matrices(to + ((i * 2 + lane / 16) ^ row_of_lane % 8) * 16, p[i][0], p[i][1], p[i][2], p[i][3]);
    if (lane % 4 == 0) shared.maximum[slot][row()] = rows.maximum[0], shared.maximum[slot][row() + 8] = rows.maximum[1];
    device::fence_proxy_async_shared();
  }
  // Takes over the other's maxima. True if sums must be multiplied by `factor`.
  __device__ __forceinline__ bool adopt(int tile, float (&factor)[2]) {
    bool raised = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float maximum = shared.maximum[tile % 2][row() + half * 8];
      raised |= maximum != rows.maximum[half];
      factor[half] = device::exp2_approximate((rows.maximum[half] - base_of(maximum)) * scale);
      rows.maximum[half] = maximum;
      rows.sum[half] *= factor[half];
    }
    return __any_sync(~0u, raised);
  }
};

constexpr int mla_consumers = 256;  // threads of both warpgroups

// Named barriers 1 and 2 say that the weights of the tile in either slot are there; 3 that the scores of an even tile have been
// started. Products and the wait for them stand in one line of code, without branches around a part of them: otherwise the
// compiler lets no two of them be under way.
template <bool late, bool in_pairs>
__device__ __forceinline__ void mla_first_of_one_softmax(MlaConsumer<in_pairs>& own) {
  const int count = own.tiles.count;
  float factor[2];
  if (count == 0) return;
  own.start_scores(0);
  own.finish_scores();
  own.exponentiate(0, factor);
  own.publish(0);
  if constexpr (!late) device::named_barrier_arrive(1, mla_consumers);
  for (int i = 1; i < count; ++i) {
    own.template start_values<true>(i - 1);
    own.start_scores(i);
    if constexpr (late) device::named_barrier_arrive(2 - i % 2, mla_consumers);
    own.template finish_values<1>();
    own.release((i - 1) % 2, 0);
    own.finish_scores();
    const bool outgrown = own.exponentiate(i, factor);
    own.publish(i);
    if constexpr (!late) device::named_barrier_arrive(1 + i % 2, mla_consumers);
    if (outgrown) rescale(own.sums, factor);
  }
  own.template start_values<true>(count - 1);
  if constexpr (late) device::named_barrier_arrive(2 - count % 2, mla_consumers);
  own.template finish_values<0>();
}
template <bool in_pairs>
__device__ __forceinline__ void mla_second_of_one_softmax(MlaConsumer<in_pairs>& own) {
  for (int i = 0; i < own.tiles.count; ++i) {
    float factor[2];
    device::named_barrier_sync(1 + i % 2, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.template start_values<false>(i);
    own.template finish_values<0>();
    own.release(i % 2, 1);
    own.release(i % 2, 2);
  }
}

// The first warpgroup has the even tiles.
template <bool in_pairs>
__device__ __forceinline__ void mla_first_of_seesaw(MlaConsumer<in_pairs>& own) {
  const int count = own.tiles.count;
  float factor[2];
  const auto own_half = [&](int i) {
    own.finish_scores();
    const bool outgrown = own.exponentiate(i, factor);
    own.publish(i);
    device::named_barrier_arrive(1, mla_consumers);
    if (outgrown) rescale(own.sums, factor);
    own.template start_values<true>(i);
    own.template finish_values<0>();
    own.release(0, 0);
  };
  const auto start_others = [&](int i) {
    device::named_barrier_sync(2, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.template start_values<false>(i);
  };
  if (count == 0) return;
  own.start_scores(0);
  device::named_barrier_arrive(3, mla_consumers);
  int i = 0;
  for (; i + 2 < count; i += 2) {
    own_half(i);
    start_others(i + 1);
    own.start_scores(i + 2);
    device::named_barrier_arrive(3, mla_consumers);
    own.template finish_values<1>();
    own.release(1, 0);
    own.release(1, 2);
  }
  own_half(i);
  if (i + 1 == count) return;
  start_others(i + 1);
  own.template finish_values<0>();
}
template <bool in_pairs>
__device__ __forceinline__ void mla_second_of_seesaw(MlaConsumer<in_pairs>& own) {
  const int count = own.tiles.count;
  float factor[2];
  const auto start_others = [&](int i) {
    device::named_barrier_sync(1, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.template start_values<false>(i);
  };
  int i = 1;
  for (; i < count; i += 2) {
    device::named_barrier_sync(3, mla_consumers);
    own.start_scores(i);
    own.finish_scores();
    start_others(i - 1);
    const bool outgrown = own.exponentiate(i, factor);
    own.publish(i);
    device::named_barrier_arrive(2, mla_consumers);
    own.template finish_values<0>();
    own.release(0, 1);
    own.release(0, 2);
    if (outgrown) rescale(own.sums, factor);
    own.template start_values<true>(i);
    own.template finish_values<0>();
    own.release(1, 1);
  }
  if (i > count) return;
  device::named_barrier_sync(3, mla_consumers);
  start_others(i - 1);
  own.template finish_values<0>();
}

// The warpgroup's results, by way of tiles that nobody reads any more.
__device__ __forceinline__ void mla_store(MlaShared& shared, const CUtensorMap& map, const float (&sums)[latent_size / 4],
                                          int index, int first_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, row = warp * 16 + lane % 16;
  bf16(*const results)[mla_box] = &shared.k[0][MlaShared::first_box(index)];
#pragma unroll
  for (int i = 0; i < latent_size / 32; ++i) {
    unsigned words[4];
    narrow(words, sums, i);
    device::store_matrices(device::shared_address(results[i / 4]) + row * 128 + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16,
                           words[0], words[1], words[2], words[3]);
  }
  device::fence_proxy_async_shared();
  device::named_barrier_sync(5 + index, 128);
  if (warp == 0 && lane == 0) {
    for (int box = 0; box < 4; ++box) device::tensor_store_2d(&map, index * 256 + box * 64, first_row, results[box]);
    device::commit_stores();
    device::wait_stores_read<0>();
  }
}

// blockIdx.x: the 64 heads; blockIdx.y: the piece. `in_pairs`: in clusters of two blocks of the same piece. `dependent`: the
// queries come from a kernel that may still run. `ahead`: how many tiles before they are loaded L2 is asked for them.
template <MlaSchedule schedule, bool in_pairs, bool dependent, int ahead, class Splits>
__global__ __launch_bounds__(mla_threads, 1) void mla_kernel(const __grid_constant__ MlaMaps maps,
                                                             const __grid_constant__ Mla<Splits> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  MlaShared& shared = *reinterpret_cast<MlaShared*>(memory);
  if constexpr (dependent) device::let_dependents_start();
  if (threadIdx.x == 0) {
    device::barrier_init(&shared.q_full, 1);
    device::barrier_init(&shared.tail_full, 1);
    for (int i = 0; i < 2 * MlaShared::parts; ++i) {
      device::barrier_init(&shared.full[i / MlaShared::parts][i % MlaShared::parts], 1);
      // The warps of one warpgroup, of each block.
      device::barrier_init(&shared.empty[i / MlaShared::parts][i % MlaShared::parts], in_pairs ? 8 : 4);
    }
    device::fence_barrier_init();
  }
  if constexpr (in_pairs) device::cluster_sync();
  else __syncthreads();
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  const MlaTiles tiles{piece};
  if (threadIdx.x < 128) {
    device::give_up_registers<24>();
    if (threadIdx.x >= 32) return;
    mla_produce<in_pairs, dependent, ahead>(shared, maps, tiles);
    if constexpr (in_pairs) device::cluster_sync();  // the other block still releases tiles here
    return;
  }
  device::take_registers<240>();
  MlaConsumer<in_pairs> own{shared, tiles, work.scale_log2, static_cast<int>(threadIdx.x) / 128 - 1, {}, {}, {}, {}};
#pragma unroll
  for (float& sum : own.sums) sum = 0;
  device::barrier_wait(&shared.q_full, 0);
  if constexpr (schedule == MlaSchedule::seesaw) {
    if (own.index == 0) mla_first_of_seesaw(own);
    else mla_second_of_seesaw(own);
  } else {
    if (own.index == 0) mla_first_of_one_softmax<schedule == MlaSchedule::late_half>(own);
    else mla_second_of_one_softmax(own);
  }
  if constexpr (in_pairs) device::cluster_arrive();
  whole_sums(own.rows);
  const int row = own.row(), first_row = piece.slot * work.heads + static_cast<int>(blockIdx.x) * mla_heads;
  if (own.thread() % 4 == 0) shared.sum[own.index][row] = own.rows.sum[0], shared.sum[own.index][row + 8] = own.rows.sum[1];
  device::named_barrier_sync(4, mla_consumers);
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = shared.sum[0][row + half * 8] + shared.sum[1][row + half * 8];
    factor[half] = reciprocal(sum);
    if (own.index == 0 && own.thread() % 4 == 0)
      work.log_sums[first_row + row + half * 8] = log_sum_exp(own.rows.maximum[half], sum, work.scale_log2);
  }
  rescale(own.sums, factor);
  mla_store(shared, maps.o, own.sums, own.index, first_row);
  if constexpr (in_pairs) device::cluster_wait();
}

}  // namespace aisp::attention
