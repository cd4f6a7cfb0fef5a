// SPDX-License-Identifier: Apache-2.0
#include "evidence/range.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/math/statistics.hpp"

namespace aisp::evidence {
namespace {

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
  // A reading represents all times within half a step of it.
  range.low = std::max(0.0, range.low - timing.offset_ms - timing.clock_step_ms / 2);
  range.high = std::max(0.0, range.high - timing.offset_ms + timing.clock_step_ms / 2);
  // Every report shows the summary, so the interval must contain it, however it was made.
  range.value = timing.summary.median;
  range.low = std::min(range.low, range.value);
  range.high = std::max(range.high, range.value);
  return range;
}

}  // namespace aisp::evidence
