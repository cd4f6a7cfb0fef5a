// SPDX-License-Identifier: Apache-2.0
// The steps along K of all tiles in equal shares, one for each cluster: no multiprocessor is idle in a last wave. A tile that
// lies in several shares is put together by whoever is last with its part, always in the order of K.
#pragma once
#include <aisp/device/fence.cuh>

#include "pipeline.cuh"
#include "schedule.cuh"

namespace aisp::gemm {

struct KShares {
  static constexpr bool ragged = false, windows = false, partial = false;
  float4* partials = nullptr;   // `partials_of` of them: what the warps hold of tiles that they have a part of
  unsigned* arrived = nullptr;  // `counters_of` of them, one for each 16 rows of a tile: 0 before the first run, and after each
  Extent extent{};
  int rows = 0, columns = 0, steps = 0;

  template <class C>
  static constexpr int strips = C::cluster* C::tile_m / 16;
  template <class C>
  static constexpr std::size_t tiles_of(std::size_t m, std::size_t n) {
    constexpr std::size_t tile_m = C::tile_m * C::cluster, tile_n = C::tile_n;
    return (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n);
  }
  template <class C>
  static constexpr std::size_t partials_of(std::size_t m, std::size_t n, std::size_t multiprocessors) {
    return (tiles_of<C>(m, n) + multiprocessors) * strips<C> * 32 * (C::tile_n / 8);
  }
  template <class C>
  static constexpr std::size_t counters_of(std::size_t m, std::size_t n) {
    return tiles_of<C>(m, n) * strips<C>;
  }

  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    rows = detail::tiles_of(extent.m, C::tile_m * C::cluster);
    columns = detail::tiles_of(extent.n, C::tile_n);
    steps = detail::tiles_of(extent.k, C::tile_k);
  }
  __host__ __device__ int most_tiles() const { return rows * columns * steps; }

  // The share of a cluster is what it has of one tile after the other.
  template <class C>
  __device__ __forceinline__ bool at(int index, Tile& tile) const {
    const int shares = shares_of<C>(), share = index % shares;
    const int begin = begin_of(share, shares), end = begin_of(share + 1, shares), number = begin / steps + index / shares;
    const int first = max(begin, number * steps), last = min(end, (number + 1) * steps);
    if (first >= last) return false;
    const int k = (first - number * steps) * C::tile_k, k_end = (last - number * steps) * C::tile_k;
    tile = {number % rows * (C::tile_m * C::cluster), number / rows * C::tile_n, k, min(k_end, extent.k), 0, extent.m, share};
    return true;
  }

  // By a warp, with the sums of its 16 rows from `first_row` of C on. True: they are those of the whole tile now.
  template <class C, int count>
  __device__ __forceinline__ bool join(float (&sums)[count], const Tile& tile, int first_row) const {
    static_assert(count == C::tile_n / 2);
    if (tile.k == 0 && tile.k_end == extent.k) return true;
    constexpr int quads = count / 4;
    const int shares = shares_of<C>(), row = tile.m / (C::tile_m * C::cluster), number = tile.n / C::tile_n * rows + row;
    const int strip = first_row / 16 - row * strips<C>, lane = static_cast<int>(device::lane_index());
    const int first = share_of(number * steps, shares), parts = share_of((number + 1) * steps - 1, shares) - first + 1;
    // From one part to the next either the tile or the share is another: their sum numbers them.
    const auto place = [&](int share) {
      return partials + static_cast<std::size_t>((number + share) * strips<C> + strip) * (quads * 32) + lane;
    };
    float4* const own = place(tile.slice);
#pragma unroll
    for (int i = 0; i < quads; ++i)
      __stcg(own + i * 32, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    __syncwarp();
    bool last = false;
    if (lane == 0) {
      unsigned* const counter = arrived + number * strips<C> + strip;
      device::fence_gpu();
      last = atomicAdd(counter, 1) == static_cast<unsigned>(parts - 1);
      device::fence_gpu();
      if (last) *counter = 0;
    }
    if (__any_sync(~0u, last) == 0) return false;
    __syncwarp();
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      const float4* const from = place(first + part);
#pragma unroll
      for (int i = 0; i < quads; ++i) {
        const float4 more = __ldcg(from + i * 32);
        sums[4 * i] += more.x, sums[4 * i + 1] += more.y, sums[4 * i + 2] += more.z, sums[4 * i + 3] += more.w;
      }
    }
    return true;
  }

 private:
  template <class C>
  static __device__ __forceinline__ int shares_of() {
    return static_cast<int>(gridDim.x) / C::cluster;
  }
  __device__ __forceinline__ int begin_of(int share, int shares) const {
    return static_cast<int>(static_cast<long long>(share) * most_tiles() / shares);
  }
  // The last one that begins at this step or before.
  __device__ __forceinline__ int share_of(int step, int shares) const {
    return static_cast<int>(((step + 1LL) * shares - 1) / most_tiles());
  }
};

// Whether the tiles of a schedule come in parts that have to be put together.
template <class Schedule>
constexpr bool joins = false;
template <>
constexpr bool joins<KShares> = true;

}  // namespace aisp::gemm
