// SPDX-License-Identifier: Apache-2.0
#include "base/math/statistics.hpp"

#include <algorithm>
#include <array>
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

namespace {

// `z` is the quantile of the normal distribution, `first` those of one to three degrees, where the expansion is not exact.
double quantile(double z, const std::array<double, 4>& first, double degrees) {
  if (degrees <= 3) return first.at(static_cast<std::size_t>(std::max(1.0, std::floor(degrees))));
  // Abramowitz, Stegun: Handbook of Mathematical Functions, 26.7.5.
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, z9 = z7 * z * z;
  return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * std::pow(degrees, 2)) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * std::pow(degrees, 3)) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * std::pow(degrees, 4));
}

}  // namespace

double student_t_975(double degrees) { return quantile(1.959964, {12.706, 12.706, 4.303, 3.182}, degrees); }

double beyond_student_t(double t, double degrees) {
  const double z = std::sqrt(degrees * std::log1p(t * t / degrees)) * (1 - 2 / (8 * degrees + 3));
  return std::erfc(std::copysign(z, t) / std::sqrt(2.0)) / 2;
}

std::vector<bool> beyond_luck(std::span<const double> chances, double rate) {
  std::vector<double> sorted(chances.begin(), chances.end());
  std::ranges::sort(sorted);
  double largest = -1;
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (sorted[i] <= rate * static_cast<double>(i + 1) / static_cast<double>(sorted.size())) largest = sorted[i];
  std::vector<bool> chosen;
  for (const double chance : chances) chosen.push_back(chance <= largest);
  return chosen;
}

double student_t_995(double degrees) { return quantile(2.575829, {63.657, 63.657, 9.925, 5.841}, degrees); }

}  // namespace aisp::base
