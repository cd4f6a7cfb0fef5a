// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "evidence/comparison/comparison.hpp"
#include "evidence/run_record.hpp"

namespace aisp::evidence {

// Two executables that took turns: `before[i]` and `after[i]` are processes of one turn. Intervals are those over the processes
// of a side: from the lowest to the highest end of any; values are means.
Comparison compare_sides(const std::vector<RunRecord>& before, const std::vector<RunRecord>& after, double threshold);

// Targets that are surely slower: a time that is worse, or a speedup that is although the baseline's time did not get better.
std::vector<std::string> slower_targets(const Comparison& comparison);

}  // namespace aisp::evidence
