// SPDX-License-Identifier: Apache-2.0
// Messages about pairs that this executable was built without.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "suite/selection/select.hpp"

namespace aisp::suite {

// Returns "./setup.sh --chapters ch01,ch05:mmap", which builds this executable's pairs and the targets; no target means all.
std::string build_command(const std::vector<std::string>& targets);
// Returns "not built; ./setup.sh --chapters ch01,ch05:mmap builds it": why the pair that the targets name does not run.
std::string not_built_reason(const std::vector<std::string>& targets);
// Returns "21 of 163, chosen with --chapters ch01"; empty if all are built.
std::string built_part();

// Throws base::Error (nothing), with the command that builds them, if the targets selected nothing that is built.
void demand_built(const Selection& selection, const std::vector<std::string>& targets);
// Returns skipped results of these pairs, for a run's reports.
std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets);

}  // namespace aisp::suite
