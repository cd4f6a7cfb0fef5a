// SPDX-License-Identifier: Apache-2.0
// Trees of draft tokens as speculative decoding makes them, and all that follows from them: words of ancestors, a mask, and the
// paths from the root to the leaves. They are one input, since they must change together.
#pragma once
#include <cuda_bf16.h>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace aisp::ch18 {

constexpr std::size_t most_nodes = 64;  // bits of a word
constexpr int path_positions = 8;       // nodes whose rows a block of the path kernel has
constexpr float hidden_bias = -1e30f;   // in bf16; finite, as in masks that are added, so that no row of a tile becomes NaN

// Sections of 64-bit words: for each node those of its path as bits, itself included; the blocks of paths; the mask, a bias of 0
// or hidden_bias in bf16 for each node and key, `pitch` to a node. The sizes say where they lie, the seed what is in them.
struct DraftTrees {
  std::size_t batch, nodes, context;
  bool extremes;  // the first tree is a chain and the second a star

  static constexpr std::size_t path_words = 1 + most_nodes / 8;  // a block of a path: its header, and its nodes, a byte each
  std::size_t keys() const { return context + nodes; }
  std::size_t leaves() const { return std::max<std::size_t>(1, nodes / 4); }  // of a random tree
  std::size_t path_blocks() const { return batch * (extremes ? nodes : leaves()); }
  std::size_t pitch() const { return (keys() + 63) / 64 * 64; }
  std::size_t paths_begin() const { return batch * nodes; }
  std::size_t mask_begin() const { return (paths_begin() + path_blocks() * path_words + 31) / 32 * 32; }
  std::size_t words() const { return mask_begin() + batch * nodes * pitch() / 4; }
};

// The parent of each node, a smaller number than its own; that of the root is -1.
class DraftTree {
 public:
  DraftTree(const DraftTrees& trees, std::size_t sequence, std::uint64_t seed) : parent_(trees.nodes, -1) {
    if (trees.extremes && sequence < 2) {
      for (std::size_t i = 1; i < trees.nodes; ++i) parent_[i] = sequence == 0 ? static_cast<int>(i) - 1 : 0;
    } else draw(trees.leaves(), seed, sequence << 32);
  }
  // From the root on.
  std::vector<int> path(int node) const {
    std::vector<int> result;
    for (; node >= 0; node = parent_[static_cast<std::size_t>(node)]) result.push_back(node);
    std::ranges::reverse(result);
    return result;
  }
  std::uint64_t ancestors(int node) const {
    std::uint64_t bits = 0;
    for (; node >= 0; node = parent_[static_cast<std::size_t>(node)]) bits |= std::uint64_t{1} << node;
    return bits;
  }
  bool is_leaf(int node) const { return std::ranges::find(parent_, node) == parent_.end(); }

 private:
  // Chains of 2 to 7 nodes, each but the first after a node that has children: no path is longer than seven nodes.
  void draw(std::size_t leaves, std::uint64_t seed, std::uint64_t at) {
    constexpr int longest = 7;
    const std::size_t nodes = parent_.size();
    const auto below = [&](std::size_t count) { return random_bits(seed, at++) % count; };
    std::vector<std::size_t> lengths(leaves, nodes / leaves);
    lengths[0] += nodes % leaves;
    for (std::size_t i = 1; i + 1 < leaves; i += 2) {
      const std::size_t moved = below(3);
      lengths[i] -= moved, lengths[i + 1] += moved;
    }
    std::vector<int> depth(nodes, 1);
    std::vector<std::size_t> inner;  // nodes with children
    std::size_t next = 0;
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
      std::size_t behind = 0;  // the root
      if (leaf > 0) {
        behind = inner[below(inner.size())];
        if (depth[behind] + static_cast<int>(lengths[leaf]) > longest) behind = 0;
      }
      for (std::size_t i = 0; i < lengths[leaf]; ++i, ++next) {
        if (next > 0) {
          parent_[next] = static_cast<int>(behind);
          depth[next] = depth[behind] + 1;
        }
        if (i + 1 < lengths[leaf]) inner.push_back(next);
        behind = next;
      }
    }
  }

  std::vector<int> parent_;
};

// Packs the header of a path's block: its sequence, how many nodes the path has, the first of them that is on no earlier path,
// and the block's number among those of the path. A path of no nodes: nothing.
inline std::uint64_t path_header(std::size_t sequence, std::size_t length, std::size_t first_own, std::size_t block) {
  return sequence | length << 16 | first_own << 24 | block << 32;
}

inline void lay_out_tree(const DraftTrees& trees, const DraftTree& tree, std::size_t sequence, std::span<std::uint64_t> words,
                         std::size_t& block) {
  std::uint64_t covered = 0;
  for (int node = 0; node < static_cast<int>(trees.nodes); ++node) {
    words[sequence * trees.nodes + static_cast<std::size_t>(node)] = tree.ancestors(node);
    if (!tree.is_leaf(node)) continue;
    const std::vector<int> path = tree.path(node);
    std::size_t own = 0;
    while ((covered >> path[own] & 1) != 0) ++own;
    covered |= tree.ancestors(node);
    for (std::size_t b = own / path_positions; b * path_positions < path.size(); ++b, ++block) {
      std::uint64_t* const to = words.data() + trees.paths_begin() + block * DraftTrees::path_words;
      *to = path_header(sequence, path.size(), own, b);
      for (std::size_t i = 0; i < path.size(); ++i) to[1 + i / 8] |= static_cast<std::uint64_t>(path[i]) << i % 8 * 8;
    }
  }
}

inline HostFill<std::uint64_t> trees_and_masks(const DraftTrees& trees) {
  return [trees](std::span<std::uint64_t> words, std::uint64_t seed) {
    std::ranges::fill(words, 0);
    std::size_t block = 0;
    for (std::size_t s = 0; s < trees.batch; ++s) {
      lay_out_tree(trees, DraftTree{trees, s, seed}, s, words, block);
      for (std::size_t row = s * trees.nodes; row < (s + 1) * trees.nodes; ++row) {
        auto* const mask = reinterpret_cast<__nv_bfloat16*>(words.data() + trees.mask_begin()) + row * trees.pitch();
        for (std::size_t node = 0; node < trees.nodes; ++node)
          if ((words[row] >> node & 1) == 0) mask[trees.context + node] = __float2bfloat16_rn(hidden_bias);
      }
    }
  };
}

}  // namespace aisp::ch18
