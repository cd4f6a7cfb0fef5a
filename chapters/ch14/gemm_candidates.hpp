// SPDX-License-Identifier: Apache-2.0
// The configurations of the GEMM engine that autotuned_gemm chooses among: widths of a tile in steps of 16, where a library ships
// one or two.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "gemm/gemm.hpp"
#include "gemm/source.hpp"

namespace aisp::ch14 {

// Stages that fit into a block's shared memory beside the barriers and what eight warps stage.
template <int tile_n>
constexpr int stages_that_fit = std::min<int>(
    8, (gemm::detail::most_shared_bytes - 1024 - 8 * gemm::TmaStore<>::staging_bytes<tile_n>) / ((128 + tile_n) * 128));

template <int tile_n>
constexpr gemm::Shape tuned_shape(bool pingpong, int cluster) {
  return {.tile_m = 128,
          .tile_n = tile_n,
          .stages = stages_that_fit<tile_n>,
          .consumers = 2,
          .pingpong = pingpong,
          .cluster = cluster};
}

using TunedOperand = gemm::Operand<gemm::bf16>;
// A type of its own, because nvcc cannot name types to the host's compiler whose parameters are objects.
template <int tile_n, bool pingpong, int cluster>
struct TunedConfig : gemm::Config<TunedOperand, TunedOperand, gemm::InTensorCores, tuned_shape<tile_n>(pingpong, cluster)> {};

using UsualConfig = TunedConfig<128, false, 1>;
inline constexpr int narrowest_tile = 96, widest_tile = 256, tile_step = 16;

// All widths, each by single blocks and by pairs that share their part of B; and the ping-pong of 128, the widest whose sums, for
// all rows of a tile in one warpgroup, leave registers free.
inline constexpr auto candidates = []<std::size_t... i>(std::index_sequence<i...>) {
  std::array<gemm::Shape, 2 * sizeof...(i) + 2> all{};
  ((all[2 * i] = tuned_shape<narrowest_tile + tile_step* static_cast<int>(i)>(false, 1),
    all[2 * i + 1] = tuned_shape<narrowest_tile + tile_step* static_cast<int>(i)>(false, 2)),
   ...);
  all[2 * sizeof...(i)] = tuned_shape<128>(true, 1);
  all[2 * sizeof...(i) + 1] = tuned_shape<128>(true, 2);
  return all;
}
(std::make_index_sequence<(widest_tile - narrowest_tile) / tile_step + 1>{});
static_assert(candidates.size() == 24);

inline KernelSource tuned_source(const gemm::Shape& shape) {
  return gemm::kernel_source("tuned_gemm.cu", shape, {.a = "Operand<bf16>", .b = "Operand<bf16>"});
}

using TunedProblem = gemm::Problem<gemm::bf16, gemm::bf16, gemm::bf16>;
using TunedGemm = gemm::Gemm<UsualConfig>::Prepared;

// What each of them launches for one problem, in their order.
inline std::array<TunedGemm, candidates.size()> prepare_candidates(const TunedProblem& problem) {
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<TunedGemm, candidates.size()>{
        gemm::Gemm<TunedConfig<candidates[i].tile_n, candidates[i].pingpong, candidates[i].cluster>>{problem}.prepared()...};
  }
  (std::make_index_sequence<candidates.size()>{});
}

// Of the time that `processors` SMs have for whole waves of tiles, the part that they compute something which is wanted.
inline double wave_efficiency(const gemm::Shape& shape, std::size_t m, std::size_t n, unsigned processors) {
  const std::size_t cluster = static_cast<std::size_t>(shape.cluster), rows = static_cast<std::size_t>(shape.tile_m) * cluster;
  const std::size_t columns = static_cast<std::size_t>(shape.tile_n), at_once = std::max<std::size_t>(processors / cluster, 1);
  const std::size_t tiles = (m + rows - 1) / rows * ((n + columns - 1) / columns), waves = (tiles + at_once - 1) / at_once;
  return static_cast<double>(m * n) / static_cast<double>(waves * processors * (rows / cluster) * columns);
}

}  // namespace aisp::ch14
