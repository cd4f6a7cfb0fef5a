// SPDX-License-Identifier: Apache-2.0
// Measured numbers with their intervals, and what changed between two of them.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "evidence/result.hpp"

namespace aisp::evidence {

struct Range {
  double value = 0, low = 0, high = 0;
};

// Median and its 95 % interval between two order statistics (base::median_ranks), which holds for any distribution of independent
// samples; all that was seen for fewer than six of them.
Range median_range(std::span<const double> samples);

// Of a variant's time, stopwatch offset taken out, the clock's step in the interval; nothing when it was not timed. Without raw
// samples the interval has no width.
std::optional<Range> time_range(const VariantResult& variant);

enum class Change { same, slightly_worse, worse, slightly_better, better };
std::string_view to_string(Change change);

// Processes that do equal work differ by up to this much (measure/statistics.hpp), whatever their intervals say.
inline constexpr double smallest_change = 0.01;

// Worse: the intervals are apart, the values differ by smallest_change at least, and a loss of `threshold` (0.05) cannot be
// excluded, given that processes differ. Slightly worse: the same, but the loss is surely smaller than `threshold`. Better
// likewise.
Change change_of(const Range& before, const Range& after, Direction better, double threshold);

// (2, 2.1) 5; infinite or NaN where `before` is 0.
double change_percent(double before, double after);

}  // namespace aisp::evidence
