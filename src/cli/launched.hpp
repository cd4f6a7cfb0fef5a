// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/suite_flags.hpp"
#include "run/parent/world.hpp"

namespace aisp::cli {

// Calls `command` in a process by itself, with null, and in process 0 of those that a launcher started, when all have come. The
// others serve process 0 meanwhile, and end with its status.
base::Exit run_launched(const SuiteFlags& flags, const std::vector<std::string>& command_line,
                        const std::function<base::Exit(run::World* world)>& command);

}  // namespace aisp::cli
