// SPDX-License-Identifier: Apache-2.0
// The host's side of decoding: grids. A pair launches decode_kernel with one piece a sequence and bf16 results, or with several
// and float ones: these are merged by it (MergedByLast), or by merge_states after it.
#pragma once
#include <aisp/launch.hpp>

#include "merge.cuh"

namespace aisp::attention {

template <int head_size, int group, int queries = 1>
Grid decode_grid(int kv_heads, int pieces) {
  return {dim3{static_cast<unsigned>(kv_heads), static_cast<unsigned>(pieces)}, decode_threads,
          static_cast<std::size_t>(decode_shared_bytes<head_size, group, queries>)};
}
// `rows`: heads times queries.
inline Grid merge_grid(int rows, int sequences) {
  constexpr int warps = merge_threads / 32;
  return {dim3{static_cast<unsigned>((rows + warps - 1) / warps), static_cast<unsigned>(sequences)}, merge_threads};
}
inline Grid list_pieces_grid(int sequences) {
  return {1, list_pieces_threads, static_cast<std::size_t>(list_pieces_shared_bytes(sequences))};
}

}  // namespace aisp::attention
