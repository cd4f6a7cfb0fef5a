// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "machine/machine.hpp"
#include "run/request.hpp"
#include "suite/configuration.hpp"
#include "suite/placement.hpp"

namespace aisp::suite {

// What an earlier run was told to do: settings that somebody had set, and its targets.
struct Resumed {
  Configuration configuration;
  std::vector<std::string> targets;
};

// From the run's effective configuration; defaults and all targets where that is missing or unreadable.
Resumed read_resumed(const std::filesystem::path& folder);

// What an earlier result was measured with that is not what is asked for now, as in "scale 1, seed 42"; empty where it can stand
// beside new ones. Settings that add to a result, or decide how long it is sampled, make no difference.
std::string other_settings(const evidence::PairResult& earlier, const Placement& placement, const run::Request& wish,
                           const machine::Machine& machine);

}  // namespace aisp::suite
