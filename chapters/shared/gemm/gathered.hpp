// SPDX-License-Identifier: Apache-2.0
// A grouped GEMM whose rows of A are gathered by index: the products of experts without a copy of the tokens in their order.
#pragma once
#include "gathered.cuh"
#include "grouped.hpp"

namespace aisp::gemm {

// As GroupedGemm, but that row m of A is row rows[m] of `a`, which is as wide as k or as `.pitches.a`. C is a Config with the
// main loop GatheredInTensorCores and no cluster.
template <class C, class Epilogue = Identity, class Store = RowsStore<>>
class GatheredGroupedGemm {
  using Schedule = OnMultiprocessors<GroupedRows>;
  using Product = PitchedGemm<C, Schedule, Epilogue, Store>;

 public:
  using Problem = typename Product::Problem;

  static std::size_t workspace_bytes(std::size_t m, std::size_t groups) {
    return GroupedGemm<C, Epilogue, Store>::workspace_bytes(m, groups);
  }

  GatheredGroupedGemm(const Problem& problem, const int* rows, const int* offsets, void* workspace,
                      const GroupedOptions& options = {})
      : list_{offsets, problem.groups, workspace},
        band_{options.band},
        is_empty_{problem.m == 0 || problem.n == 0},
        prepared_{Product{problem,
                          options.pitches,
                          {{.tiles = list_.tiles, .count = list_.count, .groups = list_.groups}, options.multiprocessors}}
                      .prepared()} {
    detail::require(band_ > 0, "a band has one row of tiles at least, not " + std::to_string(band_));
    detail::require(rows != nullptr, "which rows of a are multiplied is missing: an index for each row of C on the GPU");
    detail::require(reinterpret_cast<std::uintptr_t>(problem.a) % 16 == 0, "a must begin at a multiple of 16 bytes");
    prepared_.mainloop.table = problem.a;
    prepared_.mainloop.rows = rows;
    prepared_.mainloop.pitch = detail::narrow(options.pitches.a == 0 ? problem.k : options.pitches.a);
  }

  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    if (is_empty_) return;
    list_.make(stream, C::tile_m, band_);
    prepared_.run(stream, gathered_gemm_kernel<C, Schedule, Epilogue, Store>, epilogue);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  detail::RowTileList list_;
  int band_;
  bool is_empty_;
  typename Product::Prepared prepared_;
};

}  // namespace aisp::gemm
