// SPDX-License-Identifier: Apache-2.0
// A run read from its folder for analysis.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

// Prefix of the folders with reruns of regressed pairs, inside the folder of the run that they confirm.
inline constexpr const char* confirmation_prefix = "confirmation_";

struct RunRecord {
  std::filesystem::path folder;
  Manifest manifest;                  // with the selected targets
  std::vector<PairResult> pairs;      // those that ended
  std::vector<std::string> warnings;  // "FILE:7: the last line is incomplete and was left out"
  bool confirmation = false;          // it confirms another run; its selection is not a request
};

// Reads a run; throws base::Error (usage) naming file and place for missing, damaged or foreign contents.
RunRecord read_run(const std::filesystem::path& folder);
// Reads the run, and the reruns inside its folder in the order in which they were made.
std::vector<RunRecord> read_with_confirmations(const std::filesystem::path& folder);

// Returns the runs below `artifacts`, oldest first by the time of their last result; without those of `aisp verify`, which time
// nothing.
std::vector<std::filesystem::path> timed_runs(const std::filesystem::path& artifacts);

}  // namespace aisp::evidence
