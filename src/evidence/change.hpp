// SPDX-License-Identifier: Apache-2.0
// What changed between two measured numbers, and what another process that runs the same code is expected to measure.
// docs/method.md says how and why; tests/evidence/change_test.cpp simulates both.
#pragma once
#include <span>
#include <string_view>

#include "evidence/range.hpp"

namespace aisp::evidence {

enum class Change { same, slightly_worse, worse, slightly_better, better };
std::string_view to_string(Change change);

// Standard deviation between processes that run equal code on one machine, as a part of the value: what is assumed until recorded
// runs say otherwise. Of ratios of pairs that wait for the GPU alone 0.02 to 0.25 % were measured.
inline constexpr double process_spread_of_gpu = 0.005, process_spread_of_host = 0.02;
// Of times and joules: what the temperature of a chip under its power cap makes of them in addition.
inline constexpr double process_spread_of_absolutes = 0.02;

bool has_interval(const Range& range);
// Finite, above 0, low <= value <= high: anything else is no ratio.
bool is_ratio(const Range& range);

// The median of runs of equal code in processes of their own, and the interval that 95 % of further runs fall into, by their
// spread (Student's t, on a logarithmic scale). Below three runs their spread says little, so `process_spread`, with the runs'
// own intervals, counts as much as four degrees of freedom. Values that are no ratios are kept as they are.
Range expected_of_runs(std::span<const Range> runs, double process_spread);

// Worse: the value is beyond the expected interval, its whole interval beyond the expected value, the values differ by
// smallest_change at least, and a loss of `threshold` (0.05) cannot be excluded. Slightly worse: the same, but the loss is surely
// smaller than `threshold`. Better likewise.
Change change_of(const Range& expected, const Range& measured, Direction better, double threshold);

// (2, 2.1) 5; infinite or NaN where `before` is 0.
double change_percent(double before, double after);

}  // namespace aisp::evidence
