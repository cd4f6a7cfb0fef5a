// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/correlation.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace aisp::measure {
namespace {

constexpr std::size_t fewest_values = 10;
// Limit in standard deviations; the largest of a few sums of autocorrelations exceeds it for 2 % of independent series.
constexpr double surely_correlated = 2.5;
// The smallest estimate from any number of values.
constexpr double fewest_effective = 4;

std::vector<double> without_mean(std::span<const double> values) {
  std::vector<double> centred(values.begin(), values.end());
  const double mean = std::accumulate(centred.begin(), centred.end(), 0.0) / static_cast<double>(centred.size());
  for (double& value : centred) value -= mean;
  return centred;
}

// Returns the sum of products with the value `lag` further on.
double product(const std::vector<double>& centred, std::size_t lag) {
  return std::inner_product(centred.begin(), centred.end() - static_cast<std::ptrdiff_t>(lag),
                            centred.begin() + static_cast<std::ptrdiff_t>(lag), 0.0);
}

// Returns ranks; ties share their mean.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<double> ranks;
  for (const double value : values) {
    const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), value);
    ranks.push_back(static_cast<double>((first - sorted.begin()) + (last - sorted.begin())) / 2);
  }
  return ranks;
}

// Slow and weak drift shows in no single lag, so autocorrelations are summed over 1, 2, 4, 8 ... lags.
bool is_correlated(const std::function<double(std::size_t)>& correlation, std::size_t count) {
  double sum = 0;
  std::size_t summed = 1;
  for (std::size_t lag = 1; lag <= count / 8 + 1; ++lag) {
    sum += correlation(lag);
    if (lag != summed) continue;
    if (sum * std::sqrt(static_cast<double>(count) / static_cast<double>(lag)) >= surely_correlated) return true;
    summed *= 2;
  }
  return false;
}

}  // namespace

std::optional<double> rank_autocorrelation(std::span<const double> values) {
  if (values.size() < fewest_values) return std::nullopt;
  const std::vector<double> ranks = without_mean(ranks_of(values));
  const double variance = product(ranks, 0);
  if (!(variance > 0)) return std::nullopt;
  return product(ranks, 1) / variance;
}

double effective_count(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  if (values.size() < fewest_values) return count;
  const std::vector<double> centred = without_mean(values);
  const double variance = product(centred, 0);
  if (!(variance > 0)) return count;
  const auto correlation = [&](std::size_t lag) { return product(centred, lag) / variance; };
  if (!is_correlated(correlation, values.size())) return count;
  std::vector<double> pairs;  // sums over lags 0 and 1, 2 and 3, ...
  const auto pair = [&](std::size_t k) {
    while (pairs.size() <= k) pairs.push_back(correlation(2 * pairs.size()) + correlation(2 * pairs.size() + 1));
    return pairs[k];
  };
  double worth = 1;  // number of correlated values worth one independent value
  for (int step = 0; step < 6; ++step) {
    // Subtracting the values' own mean makes each autocorrelation too small by this much.
    const double missing = step == 0 ? 0 : worth / count;
    double sum = 0, least = 2;
    for (std::size_t k = 0; 4 * k + 2 < values.size() && pair(k) > 0; ++k) {
      least = std::min(least, pair(k) + 2 * missing);
      sum += least;
    }
    worth = std::clamp(2 * sum - 1, 1.0, count / fewest_effective);
  }
  return count / worth;
}

}  // namespace aisp::measure
