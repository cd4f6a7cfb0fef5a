// SPDX-License-Identifier: Apache-2.0
// Loops over K for the GEMM engine that scale as BlockScaled does, with other orders of products and sums: what the controls of
// fp8_block_scaling try.
#pragma once
#include <algorithm>

#include "gemm/kernel.cuh"

namespace aisp::ch19 {

using gemm::BlockScaled, gemm::warpgroup_threads;
inline constexpr int block = BlockScaled::block, both_warpgroups = 2 * warpgroup_threads;

// Returns the adder of the engine's loop.
template <class C>
__device__ __forceinline__ auto adder(const BlockScaled& loop, const gemm::Ring<C>& ring, const gemm::Tile& tile, int first_row) {
  const int warp_row = static_cast<int>(threadIdx.x) % warpgroup_threads / 32 * 16, n_block = tile.n / block;
  return BlockScaled::Add<C>{ring, loop.b_scales + n_block * loop.k_blocks + tile.k / block,
                             first_row + warp_row + static_cast<int>(device::lane_index()) / 4 + tile.m % 4,
                             loop.n_blocks - 1 - n_block, loop.k_blocks};
}
template <int parts, int count>
__device__ __forceinline__ void clear(float (&sums)[parts][count]) {
#pragma unroll
  for (auto& part : sums) {
#pragma unroll
    for (float& sum : part) sum = 0;
  }
}

// The products of a stage for 64 rows and as many columns as `products` has.
template <class C, int count>
__device__ __forceinline__ void queue(const gemm::Ring<C>& ring, int stage, int row, int column, float (&products)[count]) {
  device::wgmma_touch(products);
  device::wgmma_fence();
  gemm::multiply_stage(ring, stage, row, column, products, false);
  device::wgmma_commit();
}

// The engine's loop with turns: the warpgroups meet when one has queued its products, and the other may then queue its own after
// them. So the tensor cores always have the products of one, while the other waits for its own and adds them.
struct InTurns : BlockScaled {
  template <class C, class Queued>
  __device__ __forceinline__ void multiply(gemm::Ring<C>& ring, gemm::Cursor<C>& at, const gemm::Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued&) const {
    constexpr int width = std::min(C::tile_n, block), chunks = C::tile_n / width;
    const auto add = adder<C>(*this, ring, tile, first_row);
    const bool second = first_row >= C::rows;
    const auto meet = [] { device::named_barrier_sync(1, both_warpgroups); };
    clear(sums);
    const int steps = C::steps(tile);
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
      for (int i = 0; i < C::parts * chunks; ++i) {
        const int part = i / chunks, chunk = i % chunks;
        float products[width / 2];
        if (second) meet();  // the first one has queued
        queue(ring, at.stage, first_row + part * 64, chunk * width, products);
        const auto scale = add.scale(at.stage, step, part, chunk);
        meet();  // of the first: it has queued; of the second, too
        device::wgmma_wait<0>();
        device::wgmma_touch(products);
        if (i + 1 == C::parts * chunks) ring.give_back(at.stage);
        add(products, sums[part] + chunk * (width / 2), scale);
        if (!second) meet();  // the second one has queued
      }
      at.next();
    }
  }
};

// A warpgroup by itself: the products of the next stage are under way in a second set of registers while those of the last are
// added. There are enough of them where a tile has 128 columns.
struct TwoSets : BlockScaled {
  template <int tile_n>
  static constexpr int extra_sums = tile_n;

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(gemm::Ring<C>& ring, gemm::Cursor<C>& at, const gemm::Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued&) const {
    static_assert(C::parts == 1 && C::tile_n <= block);
    const auto add = adder<C>(*this, ring, tile, first_row);
    clear(sums);
    const int steps = C::steps(tile);
    struct Set {
      float products[C::tile_n / 2];
      float2 scale;
      int stage;
    };
    Set even, odd;
    const auto begin = [&](Set& set, int step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      set.stage = at.stage;
      queue(ring, at.stage, first_row, 0, set.products);
      set.scale = add.scale(at.stage, step, 0, 0);
      at.next();
    };
    const auto end = [&](Set& set) {
      device::wgmma_touch(set.products);
      ring.give_back(set.stage);
      add(set.products, sums[0], set.scale);
    };
    begin(even, 0);
    int step = 1;
    for (; step + 1 < steps; step += 2) {
      begin(odd, step);
      device::wgmma_wait<1>();
      end(even);
      begin(even, step + 1);
      device::wgmma_wait<1>();
      end(odd);
    }
    if (step < steps) {
      begin(odd, step);
      device::wgmma_wait<1>();
      end(even);
      device::wgmma_wait<0>();
      end(odd);
    } else {
      device::wgmma_wait<0>();
      end(even);
    }
  }
};

}  // namespace aisp::ch19
