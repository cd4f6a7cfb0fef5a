// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "base/math/statistics.hpp"
#include "evidence/result.hpp"

namespace aisp::measure {

using base::median, base::median_in_place;

// Interpolates linearly between the two nearest ranks (Hyndman and Fan, type 7). `sorted` must not be empty; percent in [0, 100].
double percentile(std::span<const double> sorted, double percent);
// Summarizes values, standard deviation with n - 1; zeros for an empty set.
evidence::Summary summarize(std::span<const double> values, std::span<const double> custom_percentiles = {});
// Returns the mean without the largest tenth of the values, which a disturbed machine makes; 0 for an empty set.
double trimmed_mean(std::vector<double> values);
// Returns by how many deviations the ranks of `values` lie above what they would be if they and `others` were of one kind (Mann
// and Whitney: On a test of whether one of two random variables is stochastically larger than the other, Annals of Mathematical
// Statistics 18, 1947). 0 if one of them is empty.
double rank_deviations(std::span<const double> values, std::span<const double> others);

}  // namespace aisp::measure
