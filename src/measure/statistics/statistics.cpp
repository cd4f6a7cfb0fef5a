// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace aisp::measure {

double percentile(std::span<const double> sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(rank));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = rank - static_cast<double>(below);
  return sorted[below] + (sorted[above] - sorted[below]) * fraction;
}

evidence::Summary summarize(std::span<const double> values, std::span<const double> custom_percentiles) {
  evidence::Summary summary;
  summary.count = values.size();
  if (values.empty()) return summary;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double count = static_cast<double>(sorted.size());
  summary.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (const double value : sorted) squares += (value - summary.mean) * (value - summary.mean);
  summary.std = sorted.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  summary.min = sorted.front();
  summary.max = sorted.back();
  summary.p25 = percentile(sorted, 25);
  summary.median = summary.p50 = percentile(sorted, 50);
  summary.p75 = percentile(sorted, 75);
  summary.p90 = percentile(sorted, 90);
  summary.p95 = percentile(sorted, 95);
  summary.p99 = percentile(sorted, 99);
  for (const double percent : custom_percentiles) summary.custom.push_back({percent, percentile(sorted, percent)});
  return summary;
}

double trimmed_mean(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  values.resize(values.size() - values.size() / 10);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double rank_deviations(std::span<const double> values, std::span<const double> others) {
  if (values.empty() || others.empty()) return 0;
  std::vector<double> sorted(others.begin(), others.end());
  std::ranges::sort(sorted);
  double above = 0;
  for (const double value : values) {
    const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), value);
    above += static_cast<double>(first - sorted.begin()) + static_cast<double>(last - first) / 2;
  }
  const double m = static_cast<double>(values.size()), n = static_cast<double>(others.size());
  return (above - m * n / 2) / std::sqrt(m * n * (m + n + 1) / 12);
}

}  // namespace aisp::measure
