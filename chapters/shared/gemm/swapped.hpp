// SPDX-License-Identifier: Apache-2.0
// Groups of few rows: the weights are A and the rows B (swap AB), so that a tile of wgmma's 64 rows is full of weights, and the
// rows of a group are its 8, 16, ... columns.
#pragma once
#include "grouped.hpp"

namespace aisp::gemm {

// Tiles of weights that stand one group below the other, times the columns that list_row_tiles_kernel lists in tiles of tile_n.
// A tile's `slice` says where its group's columns end.
struct GroupedColumns {
  static constexpr bool ragged = false, windows = false, partial = false;
  const RowTile* tiles = nullptr;
  const int* count = nullptr;
  int groups = 1, group_rows = 0;  // of A
  Extent extent{};
  int rows = 0, most_columns = 0;

  template <class C>
  static __host__ __device__ constexpr int most_column_tiles(int columns, int groups) {
    return columns / C::tile_n + (groups < columns ? groups : columns);
  }

  template <class C>
  __host__ __device__ void fit(const Extent& of) {
    extent = of;
    rows = detail::tiles_of(group_rows, C::tile_m * C::cluster);
    most_columns = most_column_tiles<C>(of.n, groups);
  }
  __host__ __device__ int most_tiles() const { return rows * most_columns; }

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    if (index >= *count * rows) return false;
    const int place = index / rows, row = index - place * rows;
    const RowTile& listed = tiles[place];
    const int first = listed.group * group_rows;
    tile = {first + row * (C::tile_m * C::cluster), listed.m, 0, extent.k, 0, first + group_rows, listed.m_end};
    return true;
  }
};

// c[column][row of the group]: only the group's own columns.
template <class Element_ = bf16>
struct GroupedColumnsStore {
  using Element = Element_;
  static constexpr bool predicated = true, any_width = true;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;
  int group_rows = 0;

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char* staging,
                                      const CUtensorMap& map) const {
    const Fragment own{at.first_row - (at.row_end - group_rows), at.first_column, group_rows, at.slice, at.group};
    ColumnsStore<Element>{c}.put(sums, own, staging, map);
  }
  static __device__ __forceinline__ void finish() {}
};

// c[n][m] = b[n][k] a[group][m][k]^T: group g has the rows offsets[g] to offsets[g + 1] of b and c. m is even.
template <class C, class Epilogue = Identity, class Store = GroupedColumnsStore<>>
class SwappedGroupedGemm {
  using Schedule = OnMultiprocessors<GroupedColumns>;
  using Product = Gemm<C, Schedule, Epilogue, Store>;

 public:
  using Problem = typename Product::Problem;

  // Returns the bytes of device memory for the list of tiles, when there are n rows at most.
  static std::size_t workspace_bytes(std::size_t n, std::size_t groups) {
    return detail::RowTileList::bytes(GroupedColumns::most_column_tiles<C>(detail::narrow(n), detail::narrow(groups)));
  }

  SwappedGroupedGemm(const Problem& problem, const int* offsets, void* workspace, int multiprocessors_or_0 = 0)
      : list_{offsets, problem.groups, workspace},
        is_empty_{problem.m == 0 || problem.n == 0},
        product_{stacked(problem),
                 {{.tiles = list_.tiles, .count = list_.count, .groups = list_.groups, .group_rows = detail::narrow(problem.m)},
                  multiprocessors_or_0}} {
    product_.set_store({problem.c, detail::narrow(problem.m)});
  }

  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    if (is_empty_) return;
    list_.make(stream, C::tile_n, 1);
    product_.run(stream, epilogue);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  static Problem stacked(Problem problem) {
    detail::require(problem.m % 2 == 0, "m must be even, not " + std::to_string(problem.m));
    problem.m *= problem.groups;
    problem.groups = 1;
    return problem;
  }

  detail::RowTileList list_;
  bool is_empty_;
  Product product_;
};

}  // namespace aisp::gemm
