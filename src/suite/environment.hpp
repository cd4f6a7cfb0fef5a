// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"

namespace aisp::suite {

// Lists what the user should know before the first pair: others compute on the GPUs, NVML is missing.
std::vector<std::string> environment_warnings(const machine::Machine& machine, const std::vector<int>& gpus);

// Adds to a result the measurements that this environment lacks, and other processes on its GPUs when the run began.
void add_environment(evidence::PairResult& result, const machine::Machine& machine, const std::vector<int>& gpus);

// Warns of CPU time that other processes took while the pair ran. A result without times needs no warning.
void add_time_of_others(evidence::PairResult& result, const std::optional<machine::CpuTimes>& before,
                        const std::optional<machine::CpuTimes>& after);

// Warns of a CPU quota that was used up while the pair ran: all its threads stood still until the next period.
void add_quota(evidence::PairResult& result, double cpu_quota, const machine::GroupEvents& before,
               const machine::GroupEvents& after);

}  // namespace aisp::suite
