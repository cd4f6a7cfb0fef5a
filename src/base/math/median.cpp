// SPDX-License-Identifier: Apache-2.0
#include "base/math/median.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp::base {
namespace {

constexpr double chance_beyond = 0.025;  // on each side

}  // namespace

double median(std::span<const double> values) {
  std::vector<double> copy(values.begin(), values.end());
  return copy.empty() ? 0 : median_in_place(copy);
}

double median_in_place(std::span<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::optional<MedianRanks> median_ranks(std::size_t count) {
  const auto n = static_cast<double>(count);
  // Chance that the k least values are all that lie below the median, summed up from none: logarithms, because 2^-n is none for
  // thousands of values.
  const auto chance_of = [&](std::size_t below) {
    const auto k = static_cast<double>(below);
    return std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
  };
  std::size_t low = 0;  // values that may be left out on each side
  for (double chance = chance_of(0); chance <= chance_beyond; chance += chance_of(low)) ++low;
  if (low == 0) return std::nullopt;
  return MedianRanks{low - 1, count - low};
}

}  // namespace aisp::base
