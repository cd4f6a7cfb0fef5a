// SPDX-License-Identifier: Apache-2.0
// Messages about pairs that this executable was built without.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "suite/selection/select.hpp"

namespace aisp::suite {

// "./setup.sh --chapters ch01,ch05:mmap": builds what this executable holds and the targets; no target means all.
std::string build_command(const std::vector<std::string>& targets);
// "not built; ./setup.sh --chapters ch01,ch05:mmap builds it": why the pair that the targets name does not run.
std::string not_built_reason(const std::vector<std::string>& targets);
// "21 of 163, chosen with --chapters ch01"; empty where all are built.
std::string built_part();

// Throws base::Error (nothing), with the command that builds them, where the targets selected nothing that is built.
void demand_built(const Selection& selection, const std::vector<std::string>& targets);
// For a run's reports: each is skipped.
std::vector<evidence::PairResult> results_of_not_built(const Selection& selection, const std::vector<std::string>& targets);

}  // namespace aisp::suite
