// SPDX-License-Identifier: Apache-2.0
// Clocks advance in steps, and a step of 32 ns is 2 % of a kernel of 1.4 us.
#pragma once
#include <span>
#include <vector>

namespace aisp::measure {

// Returns the step that the readings of several series (milliseconds) are multiples of: the smallest nonzero distance between
// two. 0 if no two are equal, because then no step is visible.
double clock_step_ms(std::span<const std::vector<double>> series);

// Spreads equal readings evenly over the step around them, in an order unrelated to theirs. A sample starts anywhere within a
// step, so a duration between two multiples is read as either, more often as the nearer one: medians of spread values reflect
// that, while medians of readings jump from step to step.
std::vector<double> spread_over_step(std::span<const double> readings, double step);

}  // namespace aisp::measure
