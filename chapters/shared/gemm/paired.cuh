// SPDX-License-Identifier: Apache-2.0
// Grouped products in clusters of two in which no block goes without work because its group has an odd number of rows of tiles.
// Two tiles one above the other share their B by multicast. Blocks of an odd row have neighbouring columns of it instead, and
// each loads a B of its own. DeepGEMM's multicast is off for such tiles, too.
#pragma once
#include "kernel.cuh"

namespace aisp::gemm {

// As GroupedRows, but that list_row_tiles_kernel makes its list for tiles of one block, in bands of an even number of them. A
// band is walked by two columns at a time, of which each has as many clusters as the band has rows of tiles. Where C has an odd
// number of columns of tiles, one more lies outside of C.
struct PairedRows {
  static constexpr bool ragged = true, windows = false, partial = false;
  static constexpr int shared = 0, alone = 1;  // a tile's slice
  const RowTile* tiles = nullptr;              // most_row_tiles of them
  const int* count = nullptr;                  // how many there are
  int groups = 1;
  Extent extent{};
  int column_pairs = 0, most_rows = 0;

  template <class C>
  static __host__ __device__ constexpr int most_row_tiles(int rows, int groups) {
    return rows / C::tile_m + (groups < rows ? groups : rows);
  }

  template <class C>
  __host__ __device__ void fit(const Extent& whole) {
    extent = whole;
    column_pairs = detail::tiles_of(whole.n, 2 * C::tile_n);
    most_rows = most_row_tiles<C>(whole.m, groups);
  }
  __host__ __device__ int most_tiles() const { return most_rows * column_pairs; }

  // The tile of one of the cluster's two blocks.
  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, int rank, Tile& tile) const {
    if (index >= *count * column_pairs) return false;
    // The bands before have as many clusters for each of their row tiles, so this one is of the same band.
    const RowTile& of_band = tiles[index / column_pairs];
    const int in_band = index - of_band.band * column_pairs, pair = in_band / of_band.band_rows;
    const int place = in_band - pair * of_band.band_rows, row_pairs = of_band.band_rows / 2;
    const bool is_odd = place >= 2 * row_pairs, is_second_column = is_odd ? rank == 1 : place >= row_pairs;
    const int row = is_odd ? place : 2 * (place - (is_second_column ? row_pairs : 0)) + rank;
    const RowTile& listed = tiles[of_band.band + row];
    tile = {listed.m,
            (2 * pair + (is_second_column ? 1 : 0)) * C::tile_n,
            0,
            extent.k,
            listed.group,
            listed.m_end,
            is_odd ? alone : shared};
    return true;
  }
};

namespace detail {

// One block's tiles, as a consumer asks for them.
template <class Schedule>
struct TilesOfBlock {
  static constexpr bool windows = false;
  const Schedule& schedule;
  int rank;
  Extent extent;

  template <class C>
  __device__ __forceinline__ bool at(int index, Tile& tile) const {
    return schedule.template at<C>(index, rank, tile);
  }
};

// As load_stage, but that the other block gets nothing of this block's B. Both wait for the same stages: whatever the other block
// shares next finds its place free.
template <class C>
__device__ __forceinline__ void load_stage_alone(Ring<C>& ring, Cursor<C>& at, const Maps& maps, const Extent& extent,
                                                 const Tile& tile, int k) {
  using A = typename C::A;
  using B = typename C::B;
  constexpr int half = C::tile_n / 2;  // what a box of B's map holds
  device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
  std::uint64_t* const full = &ring.full[at.stage];
  device::barrier_arrive_expect(full, Ring<C>::stage_bytes);
  A::template load<C::tile_m>(ring.a[at.stage], &maps.a, tile.m, k, full);
  int n = tile.n, b_k = k;
  if constexpr (B::major == Major::k) n += tile.group * extent.n;
  else b_k += tile.group * extent.k;
  B::template load<half>(ring.b[at.stage], &maps.b, n, b_k, full);
  B::template load<half>(ring.b[at.stage] + half * C::tile_k, &maps.b, n + half, b_k, full);
  at.next();
}

}  // namespace detail

// gemm_kernel for PairedRows.
template <class C, class Schedule, class Epilogue, class Store>
__global__ __launch_bounds__(C::threads, 1) void paired_gemm_kernel(const __grid_constant__ typename C::Maps maps,
                                                                    const Schedule schedule, const typename C::Mainloop mainloop,
                                                                    const Epilogue epilogue, const Store store) {
  static_assert(C::cluster == 2, "two blocks share B");
  static_assert(Store::predicated && !Store::any_width, "a tile's last rows may be another group's: RowsStore leaves them alone");
  static_assert(!C::Mainloop::scaled && !has_two_parts<typename C::Mainloop>, "a stage is a part of A and of B");
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring<C>& ring = *reinterpret_cast<Ring<C>*>(memory);
  if (threadIdx.x == 0) {
    device::prefetch_tensor_map(&maps.a);
    device::prefetch_tensor_map(&maps.b);
    ring.init();
  }
  device::cluster_arrive_relaxed();  // initialising has released the barriers
  device::cluster_wait();
  const auto rank = static_cast<int>(device::cluster_rank());

  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  const detail::Walk walk{static_cast<int>(blockIdx.x / 2), static_cast<int>(gridDim.x / 2)};
  const detail::TilesOfBlock<Schedule> own{schedule, rank, schedule.extent};
  if (warpgroup == C::consumers) {
    if constexpr (C::consumers > 1) device::give_up_registers<C::producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) {
      Cursor<C> at;
      Tile tile;
      for (int index = walk.first; own.template at<C>(index, tile); index += walk.stride) {
        if (tile.slice == Schedule::alone)
          for (int k = tile.k; k < tile.k_end; k += C::tile_k) detail::load_stage_alone(ring, at, maps, schedule.extent, tile, k);
        else detail::load_tile<C>(ring, at, maps, own, mainloop, tile, static_cast<unsigned>(rank));
      }
    }
  } else {
    if constexpr (C::consumers > 1) device::take_registers<C::consumer_registers>();
    unsigned char* const staging = memory + sizeof(Ring<C>) + warp * staging_bytes<C, Epilogue, Store>;
    const detail::Consumer<C, detail::TilesOfBlock<Schedule>, Epilogue, Store> consumer{
        ring, maps, own, mainloop, epilogue, store, staging, warpgroup, warp % 4 * 16, nullptr};
    if constexpr (C::pingpong) consumer.take_turns(walk, 0);
    else consumer.share_tiles(walk, 0);
    Store::finish();
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

}  // namespace aisp::gemm
