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
  unsigned* arrived = nullptr;  // `counters_of` of them, one for each consumer warp of a tile: 0 before the first run, and after
                                // each
  Extent extent{};
  int rows = 0, columns = 0, steps = 0;

  template <class C>
  static constexpr int warps = C::cluster*(C::tile_m / C::rows) * 4;  // that have sums of a tile
  template <class C>
  static constexpr int quads = C::parts*(C::tile_n / 8);  // that a lane has of them, four sums each
  template <class C>
  static constexpr std::size_t tiles_of(std::size_t m, std::size_t n) {
    constexpr std::size_t tile_m = C::tile_m * C::cluster, tile_n = C::tile_n;
    return (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n);
  }
  template <class C>
  static constexpr std::size_t partials_of(std::size_t m, std::size_t n, std::size_t multiprocessors) {
    return (tiles_of<C>(m, n) + multiprocessors) * (warps<C> * quads<C> * 32);
  }
  template <class C>
  static constexpr std::size_t counters_of(std::size_t m, std::size_t n) {
    return tiles_of<C>(m, n) * warps<C>;
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

  // By a warp, with its sums of a tile, whose first row of C is `first_row`. True: they are those of all of K now.
  template <class C>
  __device__ __forceinline__ bool join(float (&sums)[C::parts][C::tile_n / 2], const Tile& tile, int first_row) const {
    if (tile.k == 0 && tile.k_end == extent.k) return true;
    const int shares = shares_of<C>(), row = tile.m / (C::tile_m * C::cluster), number = tile.n / C::tile_n * rows + row;
    const int in_tile = first_row - row * (C::tile_m * C::cluster), warp = in_tile / C::rows * 4 + in_tile % C::rows / 16;
    const int first = share_of(number * steps, shares), parts = share_of((number + 1) * steps - 1, shares) - first + 1;
    const int own = tile.slice - first, lane = static_cast<int>(device::lane_index());
    unsigned* const counter = arrived + number * warps<C> + warp;
    // From one part to the next either the tile or the share is another: their sum numbers them.
    const auto place = [&](int part) {
      return partials + static_cast<std::size_t>((number + first + part) * warps<C> + warp) * (quads<C> * 32) + lane;
    };
    const auto is_last = [&](unsigned came) { return __shfl_sync(~0u, came, 0) == static_cast<unsigned>(parts - 1); };

    // Who has a tile's beginning comes to it last in its share, when the others have long been there: then nothing is written.
    unsigned came = 0;
    if (own == 0 && lane == 0) came = device::load_acquire_gpu(counter);
    if (!is_last(came)) {
      each_quad<C>(
          sums, [to = place(own)](int i, float* four) { __stcg(to + i * 32, make_float4(four[0], four[1], four[2], four[3])); });
      __syncwarp();
      if (lane == 0) {
        device::fence_gpu();
        came = atomicAdd(counter, 1);
        device::fence_gpu();
      }
      if (!is_last(came)) return false;
    }
    __syncwarp();
    if (lane == 0) *counter = 0;
    if (own != 0)
      each_quad<C>(sums, [from = place(0)](int i, float* four) {
        const float4 begin = __ldcg(from + i * 32);
        four[0] = begin.x, four[1] = begin.y, four[2] = begin.z, four[3] = begin.w;
      });
#pragma unroll 1
    for (int part = 1; part < parts; ++part)
      each_quad<C>(sums, [from = place(part)](int i, float* four) {
        const float4 more = __ldcg(from + i * 32);
        four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
      });
    return true;
  }

 private:
  template <class C, class Visit>
  static __device__ __forceinline__ void each_quad(float (&sums)[C::parts][C::tile_n / 2], const Visit& visit) {
#pragma unroll
    for (int i = 0; i < quads<C>; ++i) visit(i, sums[i / (C::tile_n / 8)] + i % (C::tile_n / 8) * 4);
  }
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
