// SPDX-License-Identifier: Apache-2.0
// Decoding over a latent cache: a block's tiles in shared memory, and the warp that fills them by TMA.
#pragma once
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>

#include "cache.cuh"
#include "softmax.cuh"

namespace aisp::attention {

// Who takes exponentials when.
enum class MlaSchedule {
  one_softmax,  // the first warpgroup, of all tiles; the second multiplies at the same time
  late_half,    // the same, but the second multiplies a tile while exponentials of the next are taken
  seesaw        // by turns: exponentials of one warpgroup's tile under products of the other
};

constexpr int latent_size = 512, mla_key_size = 576, mla_tile = 64, mla_heads = 64, mla_threads = 384;
constexpr int mla_box = mla_tile * 64;  // elements of 64 columns of a tile, the width of a swizzled row

struct alignas(1024) MlaShared {
  static constexpr int boxes = mla_key_size / 64, parts = 3, weights = boxes - 1;
  bf16 q[boxes][mla_box], k[2][boxes][mla_box];
  float maximum[2][mla_heads], sum[2][mla_heads];
  std::uint64_t q_full, tail_full, full[2][parts], empty[2][parts];

  // Of a part: columns 0 to 255, 256 to 511, those of the rotation.
  __device__ __forceinline__ static constexpr int first_box(int part) { return part * 4; }
  __device__ __forceinline__ static constexpr int boxes_of(int part) { return part < 2 ? 4 : 1; }
};

// In boxes of 64 x 64: [sequence][head] and [sequence][token] of 576 columns, [slot and head] of 512 columns of the results.
struct MlaMaps {
  CUtensorMap q, latents, o;
};

template <class Splits>
struct Mla {
  Splits splits;
  int heads;
  float scale_log2;  // what products are multiplied by, times log2_e
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

// One warp keeps two tiles full. Rows behind the piece's last are cleared: they may be NaN, and 0 times NaN is no number. In
// pairs of blocks, which have the same keys, each loads half of them for both.
template <bool in_pairs, bool dependent, int ahead>
__device__ __forceinline__ void mla_produce(MlaShared& shared, const MlaMaps& maps, const MlaTiles& tiles) {
  using S = MlaShared;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned rank = in_pairs ? device::cluster_rank() : 0;
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
            if constexpr (!in_pairs)
              device::tensor_load_3d(shared.k[slot][box], &maps.latents, box * 64, tiles.begin + i * mla_tile, tiles.sequence,
                                     full);
            else if ((box == S::weights ? i : box) % 2 == static_cast<int>(rank))
              device::tensor_load_3d_multicast(shared.k[slot][box], &maps.latents, box * 64, tiles.begin + i * mla_tile,
                                               tiles.sequence, full, 3);
        }
        if constexpr (ahead > 0)
          if (i + ahead < tiles.count)
            for (unsigned box = blockIdx.x; box < S::boxes; box += gridDim.x)  // the sequence's other blocks want the same
              device::tensor_prefetch_3d(&maps.latents, box * 64, tiles.begin + (i + ahead) * mla_tile, tiles.sequence);
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

}  // namespace aisp::attention
