// SPDX-License-Identifier: Apache-2.0
// Matrices in compressed rows whose lengths follow a power law up to a longest row, at any number of entries.
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace aisp::ch12 {

// rows + 1 offsets of rows with `entries` entries in all. The density of the lengths falls with the power that makes their sum
// right, from 1 up to `longest` (or to the mean, where that is more). One row in 64 is empty, and so are the last rows, one in
// 1024. The lengths are quantiles in an order drawn once and for all.
inline std::vector<int> power_law_offsets(std::size_t rows, std::size_t entries, std::size_t longest_row) {
  const std::size_t mixed = rows - rows / 1024, empty = mixed / 64, others = mixed - empty;
  const double mean = static_cast<double>(entries) / static_cast<double>(others);
  const double longest = std::max(static_cast<double>(longest_row), std::ceil(mean));
  const auto mean_of = [&](double power) {
    return (std::pow(longest, 2 - power) - 1) / (2 - power) * (power - 1) / (1 - std::pow(longest, 1 - power));
  };
  double power = -50, steepest = 3.0000001;
  for (int i = 0; i < 60; ++i) {
    const double middle = (power + steepest) / 2;
    (mean_of(middle) > mean ? power : steepest) = middle;
  }
  std::vector<int> lengths(rows, 0);
  auto missing = static_cast<std::int64_t>(entries);
  for (std::size_t i = 0; i < others; ++i) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(others);
    const double quantile = std::pow(1 - share * (1 - std::pow(longest, 1 - power)), 1 / (1 - power));
    lengths[i] = static_cast<int>(std::clamp(std::round(quantile), 1.0, longest));
    missing -= lengths[i];
  }
  while (missing != 0)  // what rounding left
    for (std::size_t i = 0; i < others && missing != 0; ++i) {
      const int length = lengths[i] + (missing > 0 ? 1 : -1);
      if (length < 1 || length > static_cast<int>(longest)) continue;
      missing -= length - lengths[i];
      lengths[i] = length;
    }
  for (std::size_t i = mixed; i > 1; --i) std::swap(lengths[i - 1], lengths[random_bits(1, i) % i]);
  std::vector<int> offsets(rows + 1, 0);
  for (std::size_t i = 0; i < rows; ++i) offsets[i + 1] = offsets[i] + lengths[i];
  return offsets;
}

// The columns of such rows, which ascend by two on average, around the diagonal. There are at least twice as many columns as the
// longest row has entries.
inline void fill_banded_columns(std::span<int> columns, std::span<const int> offsets, std::size_t count, std::uint64_t seed) {
  const std::size_t rows = offsets.size() - 1;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<std::size_t>(offsets[row]), length = static_cast<std::size_t>(offsets[row + 1]) - begin;
    const std::size_t diagonal = row * count / rows;
    const std::size_t first = std::min(diagonal > length ? diagonal - length : 0, count - 2 * length);
    for (std::size_t k = 0; k < length; ++k)
      columns[begin + k] = static_cast<int>(first + 2 * k + (random_bits(seed, begin + k) & 1));
  }
}

}  // namespace aisp::ch12
