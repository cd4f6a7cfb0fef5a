// SPDX-License-Identifier: Apache-2.0
// A grouped GEMM whose matrices B are used by several groups each: rows of experts that come from several GPUs, each GPU's in the
// order of the experts.
#pragma once
#include <type_traits>

#include "gathered.cuh"
#include "grouped.hpp"

namespace aisp::gemm {

// Group g is multiplied by matrix g % matrices.
struct RepeatedGroups : GroupedRows {
  int matrices = 1;

  template <class C>
  __host__ __device__ __forceinline__ bool at(int index, Tile& tile) const {
    if (!GroupedRows::at<C>(index, tile)) return false;
    tile.group %= matrices;
    return true;
  }
};

// As GroupedGemm, or, where the main loop of C gathers, as GatheredGroupedGemm: then row m of A is row rows[m] of `a`. There are
// `repeats` groups for each of problem.groups matrices.
template <class C, class Epilogue = Identity>
class RepeatedGroupedGemm {
  static constexpr bool gathers = std::is_same_v<typename C::Mainloop, GatheredInTensorCores>;
  using Schedule = RepeatedGroups;
  using Product = Gemm<C, Schedule, Epilogue, RowsStore<>>;

 public:
  using Problem = typename Product::Problem;

  static std::size_t workspace_bytes(std::size_t m, std::size_t groups) {
    return GroupedGemm<C, Epilogue>::workspace_bytes(m, groups);
  }

  RepeatedGroupedGemm(const Problem& problem, std::size_t repeats, const int* offsets, void* workspace, const int* rows = nullptr)
      : list_{offsets, problem.groups * repeats, workspace},
        is_empty_{problem.m == 0 || problem.n == 0},
        prepared_{Product{problem,
                          {{.tiles = list_.tiles, .count = list_.count, .groups = list_.groups}, detail::narrow(problem.groups)}}
                      .prepared()} {
    detail::require(gathers == (rows != nullptr), "rows are gathered by an index for each row of C on the GPU");
    if constexpr (gathers) {
      prepared_.mainloop.table = problem.a;
      prepared_.mainloop.rows = rows;
      prepared_.mainloop.pitch = detail::narrow(problem.k);
    }
  }

  // Lists the row tiles, as the offsets are now, and multiplies.
  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    if (is_empty_) return;
    list_.make(stream, C::tile_m * C::cluster, GroupedOptions{}.band);
    if constexpr (gathers) prepared_.run(stream, gathered_gemm_kernel<C, Schedule, Epilogue, RowsStore<>>, epilogue);
    else prepared_.run(stream, gemm_kernel<C, Schedule, Epilogue, RowsStore<>>, epilogue);
  }
  static constexpr Needs needs() { return Product::needs(); }

 private:
  detail::RowTileList list_;
  bool is_empty_;
  typename Product::Prepared prepared_;
};

}  // namespace aisp::gemm
