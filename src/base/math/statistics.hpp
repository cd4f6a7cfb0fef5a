// SPDX-License-Identifier: Apache-2.0
// Medians, and what intervals of a few values are made with.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace aisp::base {

double median(std::span<const double> values);     // of two in the middle their mean; 0 for none
double median_in_place(std::span<double> values);  // reorders them; there must be one

// The two ranks (from 0) of `count` sorted values between which the median of their distribution lies with at least 95 %,
// whatever the distribution: as few ranks apart as exact binomial chances allow (Conover: Practical Nonparametric Statistics,
// 1999, section 3.2). Nothing for fewer than six values: not even their extremes hold it so surely.
struct MedianRanks {
  std::size_t low = 0, high = 0;
};
std::optional<MedianRanks> median_ranks(std::size_t count);

// Student's t that 2.5 % and 0.5 % of the distribution lie above: what 95 % and 99 % intervals from a few values are made with.
// Degrees of freedom need not be whole.
double student_t_975(double degrees);
// Returns the chance that Student's t exceeds `t` (Wallace's approximation, good to a tenth of the chance).
double beyond_student_t(double t, double degrees);
// Marks findings, given each one's chance to come by luck, so that at most `rate` of the marked are expected to be luck
// (Benjamini, Hochberg: Controlling the false discovery rate, Journal of the Royal Statistical Society B 57, 1995).
std::vector<bool> beyond_luck(std::span<const double> chances, double rate);
double student_t_995(double degrees);

}  // namespace aisp::base
