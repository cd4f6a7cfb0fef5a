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

}  // namespace aisp::measure
