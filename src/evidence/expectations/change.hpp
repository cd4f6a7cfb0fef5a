// SPDX-License-Identifier: Apache-2.0
// The change between two measured numbers, and the range that another process with the same code is expected to measure.
// docs/method.md says how and why; tests/evidence/change_test.cpp simulates both.
#pragma once
#include <span>
#include <vector>

#include "base/math/statistics.hpp"
#include "evidence/range.hpp"

namespace aisp::evidence {

enum class Change { same, slightly_worse, worse, slightly_better, better };
constexpr base::Words<5> words_of(Change) { return {{"same", "slightly_worse", "worse", "slightly_better", "better"}}; }
constexpr bool is_loss(Change change) { return change == Change::worse || change == Change::slightly_worse; }
constexpr bool is_gain(Change change) { return change == Change::better || change == Change::slightly_better; }

// How processes that run equal code on one machine are taken to differ until recorded runs say otherwise: the standard deviation
// as a part of the value, the degrees of freedom that this assumption counts as, and Student's t for the expected interval.
struct ProcessSpread {
  double deviation;
  double degrees;
  double (*student_t)(double degrees);
};
// Prior for pairs that depend on the GPU alone: ratios spread by 0.02 to 0.25 % when measured, so much is known.
inline constexpr ProcessSpread process_spread_of_gpu{0.005, 4, base::student_t_975};
// Prior for times that the host decides: 0.2 % was measured for one pair and 25 % for another, so recorded runs soon outweigh it.
// It covers 99 % of further runs: runs on one machine are not independent, which a second measurement then confirms.
inline constexpr ProcessSpread process_spread_of_host{0.02, 2, base::student_t_995};
// Prior for times and joules of the GPU, which also vary with the temperature of a chip at its power cap.
inline constexpr ProcessSpread process_spread_of_absolutes{0.02, 4, base::student_t_975};

bool has_interval(const Range& range);
// Finite, above 0, low <= value <= high: anything else is no ratio.
bool is_ratio(const Range& range);

// Which of four runs or more lie so far from the others, by 15 % and by eight of their deviations (by the median distance from
// the median), that they say nothing of how further runs will differ; none where more than a third do, for then it is their
// spread.
std::vector<bool> runs_apart(std::span<const Range> runs);

// The median of runs of equal code in processes of their own, and the interval that further runs fall into, by their
// spread (Student's t, on a logarithmic scale). Few runs say little of their spread, so `assumed`, with the runs' own intervals,
// counts beside it. Runs apart are left out. Values that are no ratios are kept as they are.
Range expected_of_runs(std::span<const Range> runs, const ProcessSpread& assumed);

// Worse: the value is beyond the expected interval, its whole interval beyond the expected value, the values differ by
// smallest_change at least, and a loss of `threshold` (0.05) cannot be excluded. Slightly worse: the same, but the loss is surely
// smaller than `threshold`. Better likewise.
Change change_of(const Range& expected, const Range& measured, Direction better, double threshold);

// (2, 2.1) 5; infinite or NaN where `before` is 0.
double change_percent(double before, double after);

}  // namespace aisp::evidence
