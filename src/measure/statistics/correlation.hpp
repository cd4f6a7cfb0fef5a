// SPDX-License-Identifier: Apache-2.0
// Correlation of consecutive values, and the number of independent values that they are worth.
#pragma once
#include <optional>
#include <span>

namespace aisp::measure {

// Returns the correlation of each value's rank with the next one's, -1 to 1; about 0 for independent values. Nothing for fewer
// than 10 values or if all are equal.
std::optional<double> rank_autocorrelation(std::span<const double> values);

// Returns the number of independent values whose mean would vary as much; the number of values itself unless they are surely
// correlated. Sums autocorrelations up to the first pair of lags without any (Geyer: Practical Markov chain Monte Carlo,
// Statistical Science 7, 1992, initial monotone sequence), corrected for the bias of subtracting the mean.
double effective_count(std::span<const double> values);

}  // namespace aisp::measure
