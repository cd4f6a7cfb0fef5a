// SPDX-License-Identifier: Apache-2.0
// Clocks move in steps, and one of 32 ns is 2 % of a kernel of 1.4 us.
#pragma once
#include <span>
#include <vector>

namespace aisp::measure {

// The step that the readings of several series (milliseconds) are multiples of: the least distance between two that differ.
// 0 where no two are equal, because then no step is to be seen.
double clock_step_ms(std::span<const std::vector<double>> series);

// Readings that a step made equal, spread evenly over the step around them, in an order that has nothing to do with theirs. The
// start of a sample falls anywhere within a step, so that a duration between two multiples is read as either, more often as the
// nearer one: medians of the spread values see that, medians of the readings jump from step to step.
std::vector<double> spread_over_step(std::span<const double> readings, double step);

}  // namespace aisp::measure
