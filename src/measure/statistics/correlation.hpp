// SPDX-License-Identifier: Apache-2.0
// Do consecutive values resemble one another, and how many independent ones are they worth?
#pragma once
#include <optional>
#include <span>

namespace aisp::measure {

// Correlation of each value's rank with the next one's, -1 to 1; about 0 for independent values. Nothing for fewer than 10 values
// and where all are equal.
std::optional<double> rank_autocorrelation(std::span<const double> values);

// As many of the values as would vary the mean as much if they were independent; their number itself unless they are surely
// correlated. The sum of autocorrelations up to the first pair of lags that has none left (Geyer: Practical Markov chain Monte
// Carlo, Statistical Science 7, 1992, initial monotone sequence), with what taking out the mean takes away put back.
double effective_count(std::span<const double> values);

}  // namespace aisp::measure
