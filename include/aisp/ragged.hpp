// SPDX-License-Identifier: Apache-2.0
// Offsets of ragged segments and of a graph's rows, for Setup::input. They are summed on the host; the contents of the segments
// can be a Pattern.
#pragma once
#include <aisp/generators.hpp>

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

namespace aisp {
namespace detail {

std::vector<std::int64_t> ragged_lengths(const Pattern& lengths, std::size_t segments, std::uint64_t seed);
void cut_to(std::vector<std::int64_t>& lengths, std::int64_t most_total);
std::vector<std::int64_t> shuffled(std::vector<std::int64_t> lengths, std::uint64_t seed);
std::vector<std::int64_t> sums_of(const std::vector<std::int64_t>& lengths);
void stretch_to(std::vector<std::int64_t>& sums, std::int64_t total);

template <class T>
void copy_offsets(const std::vector<std::int64_t>& sums, std::span<T> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(sums[i]);
}

// Functions of named types: a lambda of a header would have two layouts (front_end.hpp).
template <class T>
struct RaggedOffsets {
  Pattern lengths;
  std::int64_t most_total;
  std::vector<std::int64_t> always;

  void operator()(std::span<T> offsets, std::uint64_t seed) const {
    const std::size_t segments = offsets.size() - 1;
    if (always.size() > segments) throw std::logic_error{"more lengths are always there than there are segments"};
    std::vector<std::int64_t> drawn = ragged_lengths(lengths, segments - always.size(), 1);
    cut_to(drawn, most_total - std::accumulate(always.begin(), always.end(), std::int64_t{0}));
    drawn.insert(drawn.end(), always.begin(), always.end());
    copy_offsets(sums_of(shuffled(std::move(drawn), seed)), offsets);
  }
};

template <class T>
struct RowOffsets {
  Pattern degrees;
  std::int64_t entries;

  void operator()(std::span<T> offsets, std::uint64_t seed) const {
    std::vector<std::int64_t> sums = sums_of(ragged_lengths(degrees, offsets.size() - 1, seed));
    stretch_to(sums, entries);
    copy_offsets(sums, offsets);
  }
};

}  // namespace detail

// Fills a buffer of segments + 1 elements with 0 and the end of each segment. The lengths in `always` are fixed; the others are
// drawn once from `lengths`, log_normal(...) for example, and the seed only permutes them. So every seed gives the same work,
// even if work grows with the square of a length. If their sum would exceed `most_total`, the last drawn are cut, to nothing if
// need be.
template <class T>
HostFill<T> ragged_offsets(Pattern lengths, std::int64_t most_total, std::vector<std::int64_t> always = {}) {
  return detail::RaggedOffsets<T>{lengths, most_total, std::move(always)};
}

// Fills a buffer of rows + 1 elements with the offsets of a matrix in compressed rows (CSR) with exactly `entries` entries.
// Lengths of rows are drawn from `degrees`, power_law(...) for example, and scaled to that sum. zipf(rows) gives columns with
// hubs.
template <class T>
HostFill<T> row_offsets(Pattern degrees, std::int64_t entries) {
  return detail::RowOffsets<T>{degrees, entries};
}

}  // namespace aisp
