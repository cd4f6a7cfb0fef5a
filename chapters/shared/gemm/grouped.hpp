// SPDX-License-Identifier: Apache-2.0
// A grouped GEMM in one object: rows in groups of any length, whose offsets only the GPU knows, each group with a B of its own.
#pragma once
#include "on_multiprocessors.cuh"
#include "pitched.hpp"

namespace aisp::gemm {

struct GroupedOptions {
  int band = 8;             // row tiles of a group that are walked together, so that those under way at once share both A and B
  int multiprocessors = 0;  // that it runs on; 0: all
  Pitches pitches{};
};

namespace detail {

// The list of row tiles in a workspace, and what it is made of.
struct RowTileList {
  static constexpr std::size_t count_bytes = 16;
  static std::size_t bytes(int most_tiles) { return count_bytes + sizeof(RowTile) * static_cast<std::size_t>(most_tiles); }

  const int* offsets;
  int groups;
  int* count;
  RowTile* tiles;

  RowTileList(const int* begins, std::size_t number, void* workspace)
      : offsets{begins},
        groups{narrow(number)},
        count{static_cast<int*>(workspace)},
        tiles{reinterpret_cast<RowTile*>(static_cast<std::byte*>(workspace) + count_bytes)} {
    require(groups > 0, "there are no groups");
    require(offsets != nullptr, "where groups begin is missing: groups + 1 offsets on the GPU");
    require(workspace != nullptr && reinterpret_cast<std::uintptr_t>(workspace) % count_bytes == 0,
            "groups want workspace_bytes() of device memory at a multiple of 16 bytes");
  }
  void make(cudaStream_t stream, int tile_rows, int band) const {
    launch_kernel(stream, list_row_tiles_kernel<int>, {.blocks = 1, .threads = 32}, offsets, groups, tile_rows, band, tiles,
                  count);
  }
};

}  // namespace detail

// Group g has the rows offsets[g] to offsets[g + 1] of A and C; offsets[0] is 0, and offsets[groups] at most m. Rows from there
// on are left alone, so that one group is a product whose number of rows is in device memory.
template <class C, class Epilogue = Identity, class Store = RowsStore<>>
class GroupedGemm {
  using Schedule = OnMultiprocessors<GroupedRows>;
  using Product = PitchedGemm<C, Schedule, Epilogue, Store>;

 public:
  using Problem = typename Product::Problem;

  // Returns the bytes of device memory for the list of row tiles, when there are m rows at most.
  static std::size_t workspace_bytes(std::size_t m, std::size_t groups) {
    return detail::RowTileList::bytes(GroupedRows::most_row_tiles<C>(detail::narrow(m), detail::narrow(groups)));
  }

  GroupedGemm(const Problem& problem, const int* offsets, void* workspace, const GroupedOptions& options = {})
      : list_{offsets, problem.groups, workspace},
        band_{checked_band(options.band)},
        is_empty_{problem.m == 0 || problem.n == 0},
        product_{problem,
                 options.pitches,
                 {{.tiles = list_.tiles, .count = list_.count, .groups = list_.groups}, options.multiprocessors}} {}

  // Lists the row tiles, as the offsets are now, and multiplies.
  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    if (is_empty_) return;
    list_.make(stream, C::tile_m * C::cluster, band_);
    product_.run(stream, epilogue);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  static int checked_band(int band) {
    detail::require(band > 0, "a band has one row of tiles at least, not " + std::to_string(band));
    return band;
  }

  detail::RowTileList list_;
  int band_;
  bool is_empty_;
  Product product_;
};

}  // namespace aisp::gemm
