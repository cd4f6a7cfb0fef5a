// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "machine/machine.hpp"

namespace aisp::suite {

// What the user should know before the first pair: others compute on the GPUs, NVML is missing.
std::vector<std::string> environment_warnings(const machine::Machine& machine, const std::vector<int>& gpus);

// Adds to a result what this environment could not give, and who else was on its GPUs when the run began.
void add_environment(evidence::PairResult& result, const machine::Machine& machine, const std::vector<int>& gpus);

// `clause`: what machine::stolen_time said of the time in which the pair ran; may be empty. A result without times has none that
// took longer.
void add_stolen_time(evidence::PairResult& result, const std::string& clause);

}  // namespace aisp::suite
