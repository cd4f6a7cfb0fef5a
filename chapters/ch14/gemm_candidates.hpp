// SPDX-License-Identifier: Apache-2.0
// The configurations of the GEMM engine that autotuned_gemm chooses among: widths of a tile in steps of 16, where a library ships
// one or two.
#pragma once
#include <aisp/libraries/nvrtc.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

#include "gemm/shape.cuh"
#include "gemm/source.hpp"

namespace aisp::ch14 {

inline constexpr int tile_rows = 128, narrowest_tile = 96, widest_tile = 256, tile_step = 16;

// Returns the shared memory for eight warps that stage bf16 for TmaStore<>: boxes of 16 rows, two where a tile has an even number
// of them.
constexpr int staging_bytes(int tile_n) {
  const int box = tile_n % 64 == 0 ? 64 : tile_n % 32 == 0 ? 32 : 16;
  return 8 * 16 * 2 * box * (tile_n / box % 2 == 0 ? 2 : 1);
}

// With as many stages as fit into a block's shared memory, less a KiB for barriers.
constexpr gemm::Shape tuned_shape(int tile_n, bool pingpong, int cluster) {
  constexpr int row_bytes = 128, most_stages = 8, available = 226 * 1024;
  return {.tile_m = tile_rows,
          .tile_n = tile_n,
          .stages = std::min(most_stages, (available - staging_bytes(tile_n)) / ((tile_rows + tile_n) * row_bytes)),
          .consumers = 2,
          .pingpong = pingpong,
          .cluster = cluster};
}

// All widths, each by single blocks and by pairs that share their part of B; and the ping-pong of 128, the widest whose sums, for
// all rows of a tile in one warpgroup, leave registers free.
inline constexpr auto candidates = [] {
  std::array<gemm::Shape, 24> all{};
  std::size_t count = 0;
  for (int tile_n = narrowest_tile; tile_n <= widest_tile; tile_n += tile_step)
    for (const int cluster : {1, 2}) all.at(count++) = tuned_shape(tile_n, false, cluster);
  for (const int cluster : {1, 2}) all.at(count++) = tuned_shape(128, true, cluster);
  return all;
}();
static_assert(candidates.back().cluster == 2, "all places are filled");

inline KernelSource tuned_source(const gemm::Shape& shape) {
  return gemm::kernel_source("tuned_gemm.cu", shape, {.a = "Operand<bf16>", .b = "Operand<bf16>"});
}

// Returns the useful share of the time that `processors` SMs have for whole waves of tiles.
inline double wave_efficiency(const gemm::Shape& shape, std::size_t m, std::size_t n, unsigned processors) {
  const auto cluster = static_cast<std::size_t>(shape.cluster), columns = static_cast<std::size_t>(shape.tile_n);
  const std::size_t rows = static_cast<std::size_t>(shape.tile_m) * cluster;
  const std::size_t at_once = std::max<std::size_t>(processors / cluster, 1);
  const std::size_t tiles = (m + rows - 1) / rows * ((n + columns - 1) / columns), waves = (tiles + at_once - 1) / at_once;
  return static_cast<double>(m * n) / static_cast<double>(waves * at_once * rows * columns);
}

}  // namespace aisp::ch14
