// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/change.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/math/statistics.hpp"

namespace aisp::evidence {
namespace {

// Half of a 95 % interval in standard deviations.
constexpr double half_interval = 1.96;

bool is_usable(const Range& range) {
  return std::isfinite(range.value) && std::isfinite(range.low) && std::isfinite(range.high) && range.low >= 0;
}

double variance_within(const Range& run) { return std::pow(std::log(run.high / run.low) / 2 / half_interval, 2); }

}  // namespace

bool has_interval(const Range& range) { return range.low < range.high; }

bool is_ratio(const Range& range) {
  return std::isfinite(range.value) && std::isfinite(range.high) && range.low > 0 && range.low <= range.value &&
         range.value <= range.high;
}

std::vector<bool> runs_apart(std::span<const Range> runs) {
  constexpr std::size_t fewest_to_tell = 4;
  constexpr double most_deviations = 8, least_apart = 0.15, of_normal = 1.4826, largest_part = 1.0 / 3;
  std::vector<bool> apart(runs.size(), false);
  if (runs.size() < fewest_to_tell || !std::all_of(runs.begin(), runs.end(), is_ratio)) return apart;
  std::vector<double> logs, distances;
  for (const Range& run : runs) logs.push_back(std::log(run.value));
  const double centre = base::median(logs);
  for (const double value : logs) distances.push_back(std::abs(value - centre));
  const double limit = std::max(least_apart, most_deviations * of_normal * base::median(distances));
  for (std::size_t i = 0; i < runs.size(); ++i) apart[i] = distances[i] > limit;
  const auto many = static_cast<double>(std::count(apart.begin(), apart.end(), true));
  return many <= largest_part * static_cast<double>(runs.size()) ? apart : std::vector<bool>(runs.size(), false);
}

Range expected_of_runs(std::span<const Range> runs, const ProcessSpread& assumed) {
  if (runs.empty()) return {};
  if (!std::all_of(runs.begin(), runs.end(), is_ratio)) return runs.back();
  const std::vector<bool> apart = runs_apart(runs);
  std::vector<double> logs, within;
  double sum = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (apart[i]) continue;
    logs.push_back(std::log(runs[i].value));
    within.push_back(variance_within(runs[i]));
    sum += logs.back();
  }
  const auto count = static_cast<double>(logs.size());
  double squares = 0;
  for (const double value : logs) squares += std::pow(value - sum / count, 2);
  const double degrees = assumed.degrees + count - 1;
  const double assumed_variance = assumed.deviation * assumed.deviation + base::median(within);
  const double variance = (assumed.degrees * assumed_variance + squares) / degrees;
  // Half the prediction interval of one more run.
  const double half = assumed.student_t(degrees) * std::sqrt(variance * (1 + 1 / count));
  const double centre = base::median(logs);
  return {std::exp(centre), std::exp(centre - half), std::exp(centre + half)};
}

Change change_of(const Range& expected, const Range& measured, Direction better, double threshold) {
  if (!is_usable(expected) || !is_usable(measured)) return Change::same;
  const bool higher = better == Direction::higher;
  const bool less = measured.value < expected.low && measured.high < expected.value;
  const bool more = measured.value > expected.high && measured.low > expected.value;
  const double gain = higher ? measured.value / expected.value : expected.value / measured.value;
  const double least = higher ? measured.low / expected.value : expected.value / measured.high;
  const double most = higher ? measured.high / expected.value : expected.value / measured.low;
  // Copies of equal code differ by what no interval knows.
  const double at_stake = (1 + smallest_change) / (1 + threshold);
  if ((higher ? less : more) && gain * (1 + smallest_change) <= 1)
    return least <= at_stake ? Change::worse : Change::slightly_worse;
  if ((higher ? more : less) && gain >= 1 + smallest_change)
    return most * at_stake >= 1 ? Change::better : Change::slightly_better;
  return Change::same;
}

double change_percent(double before, double after) { return (after / before - 1) * 100; }

}  // namespace aisp::evidence
