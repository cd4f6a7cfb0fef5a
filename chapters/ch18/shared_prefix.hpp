// SPDX-License-Identifier: Apache-2.0
// The places of the pages of requests that begin with the same tokens.
#pragma once
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace aisp::ch18 {

constexpr int page_rows = 16, prefix_splits = 8;

// Sizes that follow from the options alone. The prefix is a whole number of pages, since only those are shared.
struct SharedPrefix {
  std::size_t batch, prefix, suffix;
  std::size_t prefix_pages() const { return prefix / page_rows; }
  std::size_t suffix_pages() const { return (suffix + page_rows - 1) / page_rows; }
  std::size_t pages() const { return prefix_pages() + batch * suffix_pages(); }
  // Entries for a part of the prefix, and for a whole request; cuDNN wants addresses of 16 bytes.
  std::size_t part_pages() const { return (prefix_pages() + prefix_splits - 1) / prefix_splits; }
  std::size_t table_stride() const { return (prefix_splits * part_pages() + suffix_pages() + 3) / 4 * 4; }
  // None and one are among them.
  std::size_t suffix_length(std::size_t request) const { return batch > 3 && request < 2 ? std::min(request, suffix) : suffix; }
};

// Pages of the prefix in random order, the same for all requests, then their own; entries after the end name the first page.
inline HostFill<int> tables(const SharedPrefix& layout) {
  return [layout](std::span<int> table, std::uint64_t seed) {
    std::vector<int> pages(layout.pages());
    std::iota(pages.begin(), pages.end(), 0);
    const auto shuffle = [&](std::size_t first, std::size_t count) {
      for (std::size_t i = count; i > 1; --i) std::swap(pages[first + i - 1], pages[first + random_bits(seed + first, i) % i]);
    };
    shuffle(0, layout.prefix_pages());
    shuffle(layout.prefix_pages(), layout.pages() - layout.prefix_pages());
    std::ranges::fill(table, 0);
    for (std::size_t s = 0; s < layout.batch; ++s) {
      for (std::size_t i = 0; i < layout.prefix_pages(); ++i) table[s * layout.table_stride() + i] = pages[i];
      for (std::size_t i = 0; i < layout.suffix_pages(); ++i)
        table[s * layout.table_stride() + layout.prefix_pages() + i] =
            pages[layout.prefix_pages() + s * layout.suffix_pages() + i];
    }
  };
}

}  // namespace aisp::ch18
