// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache on wgmma (sm_90a): all query heads share one key of 576 columns for each token, the first 512 of
// which are its value, too. A block has 64 heads of a sequence and a piece of its keys. Two warpgroups have 256 columns of the
// result each; tiles of 64 keys arrive by TMA, once for both products, in three parts: the columns of either result, and those
// of the rotation, whose place takes the tile's weights when its scores are done.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>

#include "cache.cuh"
#include "softmax.cuh"

namespace aisp::attention {

// The order in which warpgroups take exponentials.
enum class MlaSchedule {
  one_softmax,  // the first warpgroup, of all tiles; the second multiplies at the same time
  late_half,    // the same, but the second multiplies a tile while exponentials of the next are taken
  seesaw        // by turns: exponentials of one warpgroup's tile under products of the other
};

constexpr int latent_size = 512, mla_key_size = 576, mla_tile = 64, mla_heads = 64, mla_threads = 384;
constexpr int mla_ahead = 2;            // tiles that L2 is asked for before they are loaded
constexpr int mla_box = mla_tile * 64;  // elements of 64 columns of a tile, the width of a swizzled row

struct alignas(1024) MlaShared {
  static constexpr int boxes = mla_key_size / 64, parts = 3, weights = boxes - 1;
  bf16 q[boxes][mla_box], k[2][boxes][mla_box];
  float maximum[2][mla_heads], sum[2][mla_heads];
  std::uint64_t q_full, tail_full, full[2][parts], empty[2][parts];

  // Return the boxes of a part: columns 0 to 255, 256 to 511, those of the rotation.
  __device__ __forceinline__ static constexpr int first_box(int part) { return part * 4; }
  __device__ __forceinline__ static constexpr int boxes_of(int part) { return part < 2 ? 4 : 1; }
};

struct MlaMaps {
  CUtensorMap q, latents;  // [sequence][head] and [sequence][token] of 576 columns, in boxes of 64 x 64
};

template <class Splits>
struct Mla {
  Splits splits;
  int heads;
  float scale_log2;  // what products are multiplied by, times log2_e
  float* o;          // [slot][head][latent_size]
  float* log_sums;   // [slot][head], natural
};

struct MlaTiles {
  int sequence, begin, end, count;
  __device__ __forceinline__ explicit MlaTiles(const Piece& piece)
      : sequence{piece.sequence},
        begin{piece.begin},
        end{piece.end},
        count{piece.end > piece.begin ? (piece.end - piece.begin + mla_tile - 1) / mla_tile : 0} {}
  __device__ __forceinline__ int keys(int tile) const {
    const int left = end - begin - tile * mla_tile;
    return left < mla_tile ? left : mla_tile;
  }
};

// One warp keeps two tiles full. Rows after the piece's last are cleared: they may be NaN, and 0 times NaN is no number.
template <bool dependent>
__device__ __forceinline__ void mla_produce(MlaShared& shared, const MlaMaps& maps, const MlaTiles& tiles) {
  using S = MlaShared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < tiles.count || i == 0; ++i) {
    if (i < tiles.count) {
      const int slot = i % 2, keys = tiles.keys(i);
      const unsigned free = i / 2 % 2 ^ 1;
      const bool whole = keys == mla_tile;
      if (lane == 0) {
        if (!whole) device::barrier_arrive_expect(&shared.tail_full, sizeof(shared.k[slot]));
        for (int part = 0; part < S::parts; ++part) {
          device::barrier_wait(&shared.empty[slot][part], free);
          std::uint64_t* const full = whole ? &shared.full[slot][part] : &shared.tail_full;
          if (whole) device::barrier_arrive_expect(full, S::boxes_of(part) * mla_box * unsigned{sizeof(bf16)});
          for (int box = S::first_box(part); box < S::first_box(part) + S::boxes_of(part); ++box)
            device::tensor_load_3d(shared.k[slot][box], &maps.latents, box * 64, tiles.begin + i * mla_tile, tiles.sequence,
                                   full);
        }
        if (i + mla_ahead < tiles.count)
          for (unsigned box = blockIdx.x; box < S::boxes; box += gridDim.x)  // the sequence's other blocks want the same
            device::tensor_prefetch_3d(&maps.latents, box * 64, tiles.begin + (i + mla_ahead) * mla_tile, tiles.sequence);
      }
      __syncwarp();
      if (!whole) {
        device::barrier_wait(&shared.tail_full, 0);  // only a piece's last tile is not whole
        for (int box = 0; box < S::boxes; ++box)
          for (int chunk = keys * 8 + lane; chunk < mla_tile * 8; chunk += 32)
            reinterpret_cast<uint4*>(shared.k[slot][box])[chunk] = uint4{0, 0, 0, 0};
        device::fence_proxy_async_shared();
        __syncwarp();
        if (lane == 0)
          for (std::uint64_t& full : shared.full[slot]) device::barrier_arrive(&full);
      }
    }
    // Behind the first tile, which needs nothing from a kernel that is still running.
    if (i == 0 && lane == 0) {
      if constexpr (dependent) device::wait_for_previous_kernel();
      device::barrier_arrive_expect(&shared.q_full, sizeof(shared.q));
      for (int box = 0; box < S::boxes; ++box)
        device::tensor_load_3d(shared.q[box], &maps.q, box * 64, static_cast<int>(blockIdx.x) * mla_heads, tiles.sequence,
                               &shared.q_full);
    }
  }
}

// A warpgroup's view of the block's shared memory, and its registers.
struct MlaConsumer {
  MlaShared& shared;
  const MlaTiles& tiles;
  float scale;
  int index;  // of the warpgroup, and of its part of the columns
  Rows rows;
  float scores[mla_tile / 2], sums[latent_size / 4];
  unsigned p[mla_tile / 16][4];

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % 128; }
  // Returns this thread's first row.
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
    if (threadIdx.x % 32 == 0) device::barrier_arrive(&shared.empty[slot][part]);
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
template <bool late>
__device__ __forceinline__ void mla_first_of_one_softmax(MlaConsumer& own) {
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
__device__ __forceinline__ void mla_second_of_one_softmax(MlaConsumer& own) {
  for (int i = 0; i < own.tiles.count; ++i) {
    float factor[2];
    device::named_barrier_sync(1 + i % 2, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.start_values<false>(i);
    own.finish_values<0>();
    own.release(i % 2, 1);
    own.release(i % 2, 2);
  }
}

// The first warpgroup has the even tiles.
__device__ __forceinline__ void mla_first_of_seesaw(MlaConsumer& own) {
  const int count = own.tiles.count;
  float factor[2];
  const auto own_half = [&](int i) {
    own.finish_scores();
    const bool outgrown = own.exponentiate(i, factor);
    own.publish(i);
    device::named_barrier_arrive(1, mla_consumers);
    if (outgrown) rescale(own.sums, factor);
    own.start_values<true>(i);
    own.finish_values<0>();
    own.release(0, 0);
  };
  const auto start_others = [&](int i) {
    device::named_barrier_sync(2, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.start_values<false>(i);
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
    own.finish_values<1>();
    own.release(1, 0);
    own.release(1, 2);
  }
  own_half(i);
  if (i + 1 == count) return;
  start_others(i + 1);
  own.finish_values<0>();
}
__device__ __forceinline__ void mla_second_of_seesaw(MlaConsumer& own) {
  const int count = own.tiles.count;
  float factor[2];
  const auto start_others = [&](int i) {
    device::named_barrier_sync(1, mla_consumers);
    if (own.adopt(i, factor)) rescale(own.sums, factor);
    own.start_values<false>(i);
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
    own.finish_values<0>();
    own.release(0, 1);
    own.release(0, 2);
    if (outgrown) rescale(own.sums, factor);
    own.start_values<true>(i);
    own.finish_values<0>();
    own.release(1, 1);
  }
  if (i > count) return;
  device::named_barrier_sync(3, mla_consumers);
  start_others(i - 1);
  own.finish_values<0>();
}

// blockIdx.x: the 64 heads; blockIdx.y: the piece. `dependent`: the queries come from a kernel that may still run.
template <MlaSchedule schedule, bool dependent, class Splits>
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
      device::barrier_init(&shared.empty[i / MlaShared::parts][i % MlaShared::parts], 4);  // the warps of one warpgroup
    }
    device::fence_barrier_init();
  }
  __syncthreads();
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  const MlaTiles tiles{piece};
  if (threadIdx.x < 128) {
    device::give_up_registers<24>();
    if (threadIdx.x < 32) mla_produce<dependent>(shared, maps, tiles);
    return;
  }
  device::take_registers<240>();
  MlaConsumer own{shared, tiles, work.scale_log2, static_cast<int>(threadIdx.x) / 128 - 1, {}, {}, {}, {}};
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
  whole_sums(own.rows);
  const int row = own.row(), column = own.index * (latent_size / 2) + own.thread() % 4 * 2;
  if (own.thread() % 4 == 0) shared.sum[own.index][row] = own.rows.sum[0], shared.sum[own.index][row + 8] = own.rows.sum[1];
  device::named_barrier_sync(4, mla_consumers);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = shared.sum[0][row + half * 8] + shared.sum[1][row + half * 8], factor = reciprocal(sum);
    const std::size_t to = std::size_t(piece.slot) * work.heads + blockIdx.x * mla_heads + row + half * 8;
    if (own.index == 0 && own.thread() % 4 == 0) work.log_sums[to] = log_sum_exp(own.rows.maximum[half], sum, work.scale_log2);
#pragma unroll
    for (int i = 0; i < latent_size / 16; ++i)
      *reinterpret_cast<float2*>(work.o + to * latent_size + column + i * 8) =
          float2{own.sums[4 * i + 2 * half] * factor, own.sums[4 * i + 2 * half + 1] * factor};
  }
}

}  // namespace aisp::attention
