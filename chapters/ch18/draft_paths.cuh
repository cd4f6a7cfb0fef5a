// SPDX-License-Identifier: Apache-2.0
// A path of a draft tree as the rows of a block: which node each of them is of, and how tiles of its keys and values come to
// shared memory.
#pragma once
#include "decode_reference.hpp"
#include "draft_trees.hpp"
#include "mma_tiles.cuh"
#include "row_tiles.cuh"

namespace aisp::ch18 {

constexpr int group = 4, heads = group * kv_heads;

// Keys and values of the nodes lie after those of the context: [sequence][KV head][context + nodes]. Queries and results are
// [sequence][head][node], so that all of a KV head's are neighbours.
struct Draft {
  const bf16 *q, *k, *v;
  bf16* o;
  int nodes, context;
  float scale_log2;
};

// A path from the root to a leaf, or eight positions of a longer one: 32 rows, each a query head of the group of one node, 16 of
// them a warp's. Keys and values arrive in two tiles by turns.
constexpr int path_threads = 64, path_keys = 32;
struct PathTiles {
  unsigned char k[2][path_keys * row_tiles::pitch], v[2][path_keys * row_tiles::pitch];
};
struct Path {
  int sequence, length, first_own, first;  // first: position of the block's first node
  const unsigned char* nodes;
  __device__ __forceinline__ Path(const std::uint64_t* blocks, unsigned block) {
    const std::uint64_t* const own = blocks + block * DraftTrees::path_words;
    const std::uint64_t header = *own;
    sequence = static_cast<int>(header & 0xFFFF);
    length = static_cast<int>(header >> 16 & 0xFF);
    first_own = static_cast<int>(header >> 24 & 0xFF);
    first = static_cast<int>(header >> 32 & 0xFF) * path_positions;
    nodes = reinterpret_cast<const unsigned char*>(own + 1);
  }
  // Returns the position of one of the thread's two rows: the second is two nodes further on.
  __device__ __forceinline__ int position(int half) const {
    const int t = mma_tiles::thread_again();
    return first + (t / 32 * 16 + t % 32 / 4) / group + half * 2;
  }
  __device__ __forceinline__ std::size_t element(int of_nodes, int head, int half) const {
    const int t = mma_tiles::thread_again() % 32, first_query = (sequence * heads + head * group + t / 4 % group) * of_nodes;
    return static_cast<std::size_t>(first_query + nodes[position(half)]) * head_size + t % 4 * 2;
  }
};
__device__ __forceinline__ void copy_path_tile(const Draft& draft, const Path& path, PathTiles& tiles, int slot, int head,
                                               int first, int end) {
  const unsigned begin =
      static_cast<unsigned>(path.sequence * kv_heads + head) * static_cast<unsigned>(draft.context + draft.nodes);
#pragma unroll 2
  for (int i = mma_tiles::thread_again(); i < path_keys * row_tiles::chunks; i += path_threads) {
    const int row = i / row_tiles::chunks, chunk = i % row_tiles::chunks, key = min(first + row, end - 1);
    const int place = key < draft.context ? key : draft.context + path.nodes[key - draft.context];
    const unsigned from = (begin + static_cast<unsigned>(place)) * row_tiles::chunks + static_cast<unsigned>(chunk);
    const int to = row * row_tiles::pitch + (chunk ^ row % 8) * 16;
    const bool exists = first + row < end;
    device::copy_async_16_or_zero(tiles.k[slot] + to, reinterpret_cast<const uint4*>(draft.k) + from, exists);
    device::copy_async_16_or_zero(tiles.v[slot] + to, reinterpret_cast<const uint4*>(draft.v) + from, exists);
  }
}

}  // namespace aisp::ch18
