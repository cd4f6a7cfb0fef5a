// SPDX-License-Identifier: Apache-2.0
// How many rows each group of a grouped product has, as routing leaves them, and where its rows begin: int offsets[groups + 1].
#pragma once
#include <aisp/generators.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aisp::moe {

// Each row goes to any group, all alike: multinomial counts.
inline std::vector<int> even_counts(std::size_t rows, std::size_t groups, std::uint64_t seed) {
  std::vector<int> counts(groups);
  for (std::size_t row = 0; row < rows; ++row) ++counts[random_bits(seed, row) % groups];
  return counts;
}

// As many for each group; the first ones have one more where they do not divide.
inline std::vector<int> equal_counts(std::size_t rows, std::size_t groups) {
  std::vector<int> counts(groups);
  for (std::size_t group = 0; group < groups; ++group) counts[group] = static_cast<int>(rows / groups + (group < rows % groups));
  return counts;
}

// Zipf's law with the exponent that gives the largest group `most_over_mean` times the mean; the seed decides which group that
// is.
inline std::vector<int> skewed_counts(std::size_t rows, std::size_t groups, double most_over_mean, std::uint64_t seed) {
  const auto sum = [groups](double exponent) {
    double shares = 0;
    for (std::size_t i = 1; i <= groups; ++i) shares += std::pow(static_cast<double>(i), -exponent);
    return shares;
  };
  double low = 0, high = 64;  // of the exponent; the sum of all shares falls with it
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (sum(middle) > static_cast<double>(groups) / most_over_mean ? low : high) = middle;
  }
  const double shares = sum(low), all = static_cast<double>(rows);
  std::vector<int> counts(groups);
  double before = 0;
  for (std::size_t i = 0; i < groups; ++i) {
    const double up_to = i + 1 == groups ? all : before + all * std::pow(static_cast<double>(i + 1), -low) / shares;
    counts[i] = static_cast<int>(std::llround(up_to) - std::llround(before));
    before = up_to;
  }
  for (std::size_t i = groups; i > 1; --i) std::swap(counts[i - 1], counts[random_bits(seed, i) % i]);
  return counts;
}

// No rows, one, and those around a tile of 128, for as long as there are rows and groups; the last group has the rest.
inline std::vector<int> planted_counts(std::size_t rows, std::size_t groups) {
  constexpr int around_a_tile[] = {0, 1, 127, 128, 129, 0, 63, 64, 65};
  std::vector<int> counts(groups);
  auto left = static_cast<int>(rows);
  for (std::size_t group = 0; group + 1 < groups && group < std::size(around_a_tile); ++group) {
    counts[group] = std::min(left, around_a_tile[group]);
    left -= counts[group];
  }
  counts.back() += left;
  return counts;
}

inline std::vector<int> offsets_of(const std::vector<int>& counts) {
  std::vector<int> offsets(counts.size() + 1);
  for (std::size_t group = 0; group < counts.size(); ++group) offsets[group + 1] = offsets[group] + counts[group];
  return offsets;
}

// For Setup::input.
inline HostFill<int> these(std::vector<int> numbers) {
  return [numbers = std::move(numbers)](std::span<int> to, std::uint64_t) { std::ranges::copy(numbers, to.begin()); };
}

}  // namespace aisp::moe
