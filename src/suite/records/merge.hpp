// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <vector>

#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/results_log.hpp"
#include "evidence/run_record.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::suite {

struct MergedRun {
  evidence::Manifest manifest;
  evidence::SuiteResult suite;
  evidence::LogCommand command = evidence::LogCommand::run;
  std::vector<evidence::RunRecord> shards;  // in their order
  std::vector<std::string> missing;         // targets without a result: their shard ended early
};

// Reads shards and puts them together. Throws base::Error (usage), with the names of the folders, for a run that is no shard, for
// shards that do not fit together (another build, cut, command or setting, one of them twice) and for one that is missing.
MergedRun merge_shards(const std::vector<std::filesystem::path>& folders);

// Writes the run into its folder, with the shards' files of each pair and their repeated measurements. Throws base::Error
// (unfit).
void write_merged(const MergedRun& merged, const RunFolder& folder);

}  // namespace aisp::suite
