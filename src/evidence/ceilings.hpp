// SPDX-License-Identifier: Apache-2.0
// The sources of ceilings in results.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::evidence {

// Returns the source of a type's rate in `ceilings`.
CeilingFrom source_of_flops(const ResultCeilings& ceilings, const std::string& math);

// Replaces `best` and its source by another ceiling of the same resource if that is better: one with a better source, or the
// higher one of two with the same. 0 is none.
void take_better(double& best, CeilingFrom& from, double other, CeilingFrom other_from);
// Does the same for the rate of a type in `best`.
void take_better_flops(ResultCeilings& best, const std::string& math, double flops_s, CeilingFrom from);

// Raises guessed rates of arithmetic to what a library reached in the same run, in floors and ceilings of all its pairs: the chip
// has shown that it gives as much. They stay guesses. Floors of several types or phases stay as they are. Returns the pairs
// that it changed.
std::vector<const PairResult*> raise_guessed_ceilings(std::vector<PairResult>& pairs);

}  // namespace aisp::evidence
