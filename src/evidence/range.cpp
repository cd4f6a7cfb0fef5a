// SPDX-License-Identifier: Apache-2.0
#include "evidence/range.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace aisp::evidence {
namespace {

constexpr std::size_t fewest_for_order_statistics = 6;

Range median_only(const Summary& summary) { return {summary.median, summary.median, summary.median}; }

}  // namespace

Range median_range(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t count = sorted.size(), middle = count / 2;
  const double median = count % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  if (count < fewest_for_order_statistics) return {median, sorted.front(), sorted.back()};
  const double half = static_cast<double>(count) / 2, spread = 1.96 * std::sqrt(static_cast<double>(count)) / 2;
  const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(half - spread)));
  return {median, sorted[low], sorted[count - 1 - low]};
}

std::optional<Range> time_range(const VariantResult& variant) {
  if (!variant.timing) return std::nullopt;
  const Timing& timing = *variant.timing;
  if (timing.raw_times_ms.empty()) return median_only(timing.summary);
  Range range = median_range(timing.raw_times_ms);
  for (double* value : {&range.value, &range.low, &range.high}) *value = std::max(0.0, *value - timing.offset_ms);
  // The summary is what every report shows; the interval must be around it, however it was made.
  range.value = timing.summary.median;
  range.low = std::min(range.low, range.value);
  range.high = std::max(range.high, range.value);
  return range;
}

}  // namespace aisp::evidence
