// SPDX-License-Identifier: Apache-2.0
// Clusters of four blocks one above the other, each of which loads a quarter of B for all: for products that wait for L2.
//   struct Fours : gemm::InFours<gemm::Config<..., Shape{..., .cluster = 2}>> {};
// Not every GPU has room for multiprocessors() / 4 of them at once, because a cluster lies within one of its parts:
// whole_clusters() says for how many the grid is.
#pragma once
#include <aisp/launch.hpp>

#include "gemm.hpp"

namespace aisp::gemm {

template <class Twos>
struct InFours : Twos {
  static constexpr int cluster = 4;
  static_assert(Twos::cluster == 2 && Twos::B::major == Major::k && Twos::tile_n % 32 == 0, "each block loads a quarter of B");
};

// As load_others for two.
template <class C, class Tile, class Extent>
requires(C::cluster == 4) __device__ __forceinline__
    void load_others(Ring<C>& ring, int stage, const Maps& maps, const Extent& extent, const Tile& tile, int k, unsigned rank) {
  static_assert(!Ring<C>::scaled);
  constexpr int quarter = C::tile_n / 4;
  const int n = tile.n + tile.group * extent.n + static_cast<int>(rank) * quarter;
  C::B::template load<quarter>(ring.b[stage] + rank * (quarter * C::tile_k), &maps.b, n, k, &ring.full[stage], 0b1111);
}

// The same launch with no more clusters than run at once.
template <class C, class Schedule, class Epilogue, class Store>
auto whole_clusters(Prepared<Schedule, typename C::Mainloop, Epilogue, Store> prepared) {
  if (prepared.grid.blocks.x > 0) {
    const int resident = resident_clusters(gemm_kernel<C, Schedule, Epilogue, Store>, prepared.grid);
    prepared.grid.blocks.x = std::min(prepared.grid.blocks.x, static_cast<unsigned>(std::max(1, resident)) * C::cluster);
  }
  return prepared;
}

}  // namespace aisp::gemm
