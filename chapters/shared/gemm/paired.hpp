// SPDX-License-Identifier: Apache-2.0
// A grouped GEMM in clusters of two that share B where a group has two rows of tiles for them, and waste none where it has one.
#pragma once
#include "grouped.hpp"
#include "paired.cuh"

namespace aisp::gemm {

// As GroupedGemm. C is a Config with a cluster of two; a band of the options is of as many pairs of row tiles.
template <class C, class Epilogue = Identity, class Store = RowsStore<>>
class PairedGroupedGemm {
  using Schedule = OnMultiprocessors<PairedRows>;
  using Product = PitchedGemm<C, Schedule, Epilogue, Store>;

 public:
  using Problem = typename Product::Problem;

  // Returns the bytes of device memory for the list of row tiles, when there are m rows at most.
  static std::size_t workspace_bytes(std::size_t m, std::size_t groups) {
    return detail::RowTileList::bytes(PairedRows::most_row_tiles<C>(detail::narrow(m), detail::narrow(groups)));
  }

  PairedGroupedGemm(const Problem& problem, const int* offsets, void* workspace, const GroupedOptions& options = {})
      : list_{offsets, problem.groups, workspace},
        band_{2 * options.band},
        is_empty_{problem.m == 0 || problem.n == 0},
        prepared_{Product{problem,
                          options.pitches,
                          {{.tiles = list_.tiles, .count = list_.count, .groups = list_.groups}, options.multiprocessors}}
                      .prepared()} {
    detail::require(options.band > 0, "a band has one row of tiles at least, not " + std::to_string(options.band));
  }

  // Lists the row tiles, as the offsets are now, and multiplies.
  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    if (is_empty_) return;
    list_.make(stream, C::tile_m, band_);
    prepared_.run(stream, paired_gemm_kernel<C, Schedule, Epilogue, Store>, epilogue);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  detail::RowTileList list_;
  int band_;
  bool is_empty_;
  typename Product::Prepared prepared_;
};

}  // namespace aisp::gemm
