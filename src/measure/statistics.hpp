// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::measure {

// Linear interpolation between the two nearest ranks (Hyndman and Fan, type 7). `sorted` must not be empty; percent in [0, 100].
double percentile(std::span<const double> sorted, double percent);
double median(std::span<const double> values);
// Standard deviation with n - 1; zeros for an empty set.
evidence::Summary summarize(std::span<const double> values, std::span<const double> custom_percentiles = {});

struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
  std::size_t rounds = 0;  // it comes from
  double relative_width() const { return value > 0 ? (high - low) / value : 0; }
};

// Ratio of medians, numerator over denominator, with its 95 % percentile-bootstrap interval. Entry i of both spans belongs to the
// same round, and rounds are resampled, so that what both share in a round (clock, temperature) does not widen the interval.
// Deterministic for a seed. (Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13.)
Interval ratio_of_medians(std::span<const double> numerator, std::span<const double> denominator, std::uint64_t seed,
                          int resamples = 1000);

// Equal work differs by up to this much between two places in one executable (code and data alignment), and the stopwatch is
// accurate to 1 %; an interval knows neither, so no verdict rests on less.
inline constexpr double smallest_difference = 0.01;

// Of fewer rounds the bootstrap knows too few resamples to mean anything: one round has a single one, and no width.
inline constexpr std::size_t fewest_rounds = 5;

// Faster or slower when at least `fewest_rounds` were taken, the interval excludes 1 and the median ratio is at least
// `smallest_difference` away from it; cannot tell otherwise.
evidence::Verdict verdict(const Interval& speedup);

}  // namespace aisp::measure
