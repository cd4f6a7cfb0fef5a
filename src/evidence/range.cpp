// SPDX-License-Identifier: Apache-2.0
#include "evidence/range.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/median.hpp"

namespace aisp::evidence {
namespace {

bool is_usable(const Range& range) {
  return std::isfinite(range.value) && std::isfinite(range.low) && std::isfinite(range.high) && range.low >= 0;
}

Range median_only(const Summary& summary) { return {summary.median, summary.median, summary.median}; }

}  // namespace

Range median_range(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t count = sorted.size(), middle = count / 2;
  const double median = count % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const auto ranks = base::median_ranks(count);
  return ranks ? Range{median, sorted[ranks->low], sorted[ranks->high]} : Range{median, sorted.front(), sorted.back()};
}

std::optional<Range> time_range(const VariantResult& variant) {
  if (!variant.timing) return std::nullopt;
  const Timing& timing = *variant.timing;
  if (timing.raw_times_ms.empty()) return median_only(timing.summary);
  Range range = median_range(timing.raw_times_ms);
  // A reading stands for all times within half a step of it.
  range.low = std::max(0.0, range.low - timing.offset_ms - timing.clock_step_ms / 2);
  range.high = std::max(0.0, range.high - timing.offset_ms + timing.clock_step_ms / 2);
  // The summary is what every report shows; the interval must be around it, however it was made.
  range.value = timing.summary.median;
  range.low = std::min(range.low, range.value);
  range.high = std::max(range.high, range.value);
  return range;
}

std::string_view to_string(Change change) {
  static constexpr std::array<std::string_view, 5> words{"same", "slightly_worse", "worse", "slightly_better", "better"};
  return words[static_cast<std::size_t>(change)];
}

Change change_of(const Range& before, const Range& after, Direction better, double threshold) {
  if (!is_usable(before) || !is_usable(after)) return Change::same;
  // From here on more is better.
  const bool higher = better == Direction::higher;
  const Range& gain = higher ? after : before;
  const Range& base = higher ? before : after;
  const double value = gain.value / base.value;
  const bool without_intervals = before.low == before.high && after.low == after.high;
  // No interval knows how much processes differ.
  const double at_stake = (1 + (without_intervals ? 0 : smallest_change)) / (1 + threshold);
  // The interval of what was before says whether there is a change. It does not count again in how large the change may be.
  const double least = higher ? after.low / before.value : before.value / after.high;
  const double most = higher ? after.high / before.value : before.value / after.low;
  const bool below = gain.high < base.low;
  const bool above = base.high < gain.low;
  if (below && value * (1 + smallest_change) <= 1) return least <= at_stake ? Change::worse : Change::slightly_worse;
  if (above && value >= 1 + smallest_change) return most * at_stake >= 1 ? Change::better : Change::slightly_better;
  return Change::same;
}

double change_percent(double before, double after) { return (after / before - 1) * 100; }

}  // namespace aisp::evidence
