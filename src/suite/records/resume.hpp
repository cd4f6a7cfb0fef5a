// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/results_log.hpp"
#include "machine/machine.hpp"
#include "run/wire/request.hpp"
#include "suite/placement.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

// The task of an earlier run: settings that somebody had set, and its targets.
struct Resumed {
  Configuration configuration;
  std::vector<std::string> targets;
};

// Reads the run's effective configuration. Throws base::Error (usage) if that is missing or damaged, because the run's task is
// then unknown. With `targets` from the user, a missing one leaves the defaults. They are added to the run's.
Resumed read_resumed(const std::filesystem::path& folder, const std::vector<std::string>& targets);

// Describes how an earlier result was measured differently from what is asked for now, as in "scale 1, seed 42"; empty if both
// can stand in one run. Settings that add to a result, or decide how long it is sampled, make no difference.
std::string other_settings(const evidence::PairResult& earlier, const Placement& placement, const run::Request& request,
                           const machine::Machine& machine);

// Describes the place and program of an earlier part of the run as far as they differ from these: "CPU AMD EPYC, aisp 0.1.0
// 4361b56". A run has one manifest, which must be true of all its results.
std::string elsewhere(const evidence::Manifest& earlier, const evidence::Manifest& now);

// The results of an earlier part that stand, and what the user should know of the rest.
struct EarlierPart {
  std::vector<std::pair<std::size_t, evidence::PairResult>> kept;  // by the index of their placement
  std::vector<std::string> notes;
};
EarlierPart take_over(const evidence::ResultsLog& earlier, const std::vector<Placement>& placements,
                      const Configuration& configuration, const machine::Machine& machine);

}  // namespace aisp::suite
