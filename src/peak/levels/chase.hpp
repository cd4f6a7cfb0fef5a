// SPDX-License-Identifier: Apache-2.0
// The orders in which a chase visits memory. All are one cycle: from each place to the next, and from the last to the first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aisp::peak {

// Byte offsets of every line of the first `bytes`, in random order within each window, the windows in random order too. No
// prefetcher can follow, while so few pages are in turn at once that their addresses stay translated.
std::vector<std::uint64_t> chase_of_lines(std::size_t bytes, std::size_t line, std::size_t window, std::uint64_t seed);

// One line of each page, at another place in each so that the lines do not meet in one set of a cache; the pages in random order.
std::vector<std::uint64_t> chase_of_pages(std::size_t bytes, std::size_t line, std::size_t page, std::uint64_t seed);

}  // namespace aisp::peak
