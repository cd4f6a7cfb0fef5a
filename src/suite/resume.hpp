// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "suite/configuration.hpp"

namespace aisp::suite {

// What an earlier run was told to do: settings that somebody had set, and its targets.
struct Resumed {
  Configuration configuration;
  std::vector<std::string> targets;
};

// From the run's effective configuration; defaults and all targets where that is missing or unreadable.
Resumed read_resumed(const std::filesystem::path& folder);

}  // namespace aisp::suite
