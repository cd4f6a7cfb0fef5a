// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "run/wire/protocol.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

// Returns the times of the first executions of a pair's baseline, in milliseconds, in a process in which no other variant is
// prepared or runs; none if that process fails or takes too long. `environment`: variables to set, as for the pair's own process.
std::vector<double> time_baseline(Request request, const BaselineWanted& wanted, const std::string& executable,
                                  const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace aisp::run
