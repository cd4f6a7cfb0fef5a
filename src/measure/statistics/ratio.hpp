// SPDX-License-Identifier: Apache-2.0
// Speedups and their uncertainty.
#pragma once
#include <cstdint>
#include <span>

#include "evidence/result.hpp"

namespace aisp::measure {

struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
  std::size_t rounds = 0;       // number of rounds
  double effective_rounds = 0;  // number of independent rounds with the same information
  bool measurable = true;       // both times are well above the stopwatch's accuracy
  double placement =
      0;  // difference of equal work that code and data placement may cause, as a share; in addition to `smallest_difference`
  double relative_width() const { return value > 0 ? (high - low) / value : 0; }
};

// The stopwatch's reading beyond the work itself, and its uncertainty. Milliseconds.
struct Correction {
  std::span<const double> probe;  // readings for the least work possible, one a round; none: nothing is subtracted
  double probe_work = 0;          // that work's own duration
  double accuracy = 0;            // accuracy of their difference, an error common to all variants
  double step = 0;                // step of the clock
  double offset() const;
  // Returns a reading without the offset, but never less than the accuracy, below which nothing can be resolved.
  double corrected(double reading) const { return corrected(reading, offset()); }
  double corrected(double reading, double offset) const;
};

struct RatioOptions {
  int resamples = 1000;
  int claims = 1;  // number of ratios from which this one was chosen as the best
  Correction correction = {};
};

// Ratio of medians, numerator over denominator, with its 95 % interval. Entry i of both spans belongs to the same round.
// - Whole rounds are resampled, so that what both share in a round (clock, temperature) does not widen the interval (percentile
//   bootstrap; Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13). The readings of the probe belong to their
//   rounds.
// - Where what is left of a round resembles that of the round before, the interval is widened for the rounds being worth fewer
//   (effective_count), with Student's t for how badly few of them know their own spread.
// - Equal readings are spread over the clock's step.
// - The best of several ratios is as lucky as they are many: its interval holds all of them at once (Bonferroni).
// - It holds the ratios that the correction's accuracy allows.
// Deterministic for a seed.
Interval ratio_of_medians(std::span<const double> numerator, std::span<const double> denominator, std::uint64_t seed,
                          const RatioOptions& options = {});

// Equal work differs by up to this much between two places in one executable (code and data alignment), and the stopwatch is
// accurate to 1 %; intervals include neither, so no verdict rests on less.
inline constexpr double smallest_difference = 0.01;
// Extra spread of host work shorter than this: its time may depend on how a loop or its pages are placed.
inline constexpr double placed_below_ms = 0.1, placement_of_short_host_work = 0.03;

// With fewer rounds the bootstrap knows too few resamples to mean anything: one round has a single one, and no width.
inline constexpr std::size_t fewest_rounds = 5;

// A time must be this many times the correction's accuracy for a verdict.
inline constexpr double measurable_times = 5;

// Returns faster or slower if there are at least `fewest_rounds` of measurable times, the interval excludes 1 and the median
// ratio is at least `smallest_difference` away from 1, both by more than placement may cause; otherwise it cannot tell.
evidence::Verdict verdict(const Interval& speedup);

}  // namespace aisp::measure
