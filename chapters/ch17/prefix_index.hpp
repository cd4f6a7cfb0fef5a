// SPDX-License-Identifier: Apache-2.0
// Which blocks of tokens a GPU has in its cache. A block is known by the hash of all tokens from the sequence's first one to its
// last, so that equal text after another beginning is another block.
#pragma once
#include <aisp/generators.hpp>

#include <bit>
#include <span>
#include <vector>

namespace aisp::ch17 {

// Returns a hash for each whole block of a sequence.
inline std::vector<std::uint64_t> block_hashes(std::span<const int> tokens, std::size_t block) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 0;
  for (std::size_t first = 0; first + block <= tokens.size(); first += block) {
    for (std::size_t i = first; i < first + block; i += 2) {
      const auto low = static_cast<std::uint32_t>(tokens[i]), high = static_cast<std::uint32_t>(tokens[i + 1]);
      hash = (hash ^ (std::uint64_t{high} << 32 | low)) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    hashes.push_back(random_bits(hash, 0));
  }
  return hashes;
}

class PrefixIndex {
 public:
  static constexpr int none = -1;

  explicit PrefixIndex(std::size_t blocks) : slots_(std::bit_ceil(2 * blocks + 2)) {}
  // The first page that has the block stays.
  void add(std::uint64_t hash, int page) {
    Slot& slot = slots_[place(hash)];
    if (slot.page == none) slot = {hash, page};
  }
  int find(std::uint64_t hash) const { return slots_[place(hash)].page; }
  // The pages of the leading blocks that are there.
  std::vector<int> match(const std::vector<std::uint64_t>& hashes) const {
    std::vector<int> pages;
    for (const std::uint64_t hash : hashes) {
      const int page = find(hash);
      if (page == none) break;
      pages.push_back(page);
    }
    return pages;
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    int page = none;
  };
  // Many hashes agree in their low bits; all 64 decide.
  std::size_t place(std::uint64_t hash) const {
    std::size_t at = hash % slots_.size();
    while (slots_[at].page != none && slots_[at].hash != hash) at = (at + 1) % slots_.size();
    return at;
  }

  std::vector<Slot> slots_;
};

}  // namespace aisp::ch17
