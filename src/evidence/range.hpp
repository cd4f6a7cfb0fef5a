// SPDX-License-Identifier: Apache-2.0
// Measured numbers with their intervals.
#pragma once
#include <optional>
#include <span>

#include "evidence/result.hpp"

namespace aisp::evidence {

struct Range {
  double value = 0, low = 0, high = 0;
};

// Copies of equal code differ by up to this much (measure/statistics/statistics.hpp), whatever their intervals say.
inline constexpr double smallest_change = 0.01;

// Returns the median and its 95 % interval between two order statistics (base::median_ranks), valid for any distribution of
// independent samples; the full range for fewer than six of them.
Range median_range(std::span<const double> samples);

// Returns the interval of a variant's time, without the stopwatch's offset and widened by the clock's step; nothing if it was not
// timed. Without raw samples the interval has no width.
std::optional<Range> time_range(const VariantResult& variant);

}  // namespace aisp::evidence
