// SPDX-License-Identifier: Apache-2.0
// A run's files on disk, in the order in which they are written.
#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/system/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/results_log.hpp"
#include "evidence/run_record.hpp"
#include "machine/machine.hpp"
#include "run/wire/request.hpp"
#include "suite/placement.hpp"
#include "suite/records/run_folder.hpp"
#include "suite/settings/configuration.hpp"
#include "suite/suite.hpp"

namespace aisp::suite {

inline constexpr const char* configuration_file = "effective_configuration.json";
inline constexpr const char* manifest_file = "manifest.json";

// Throws the errors that continuing the run in `folder` would throw before it measures, and changes nothing there.
void demand_continuable(const std::filesystem::path& folder, const Task& task);

class Records {
 public:
  // Reads the results of an earlier part of the run, writes manifest and effective configuration, and opens results.jsonl. Throws
  // base::Error if the folder cannot be written, or if its contents are damaged beyond a truncated last line, are not from `aisp
  // run`, or were measured elsewhere.
  Records(const std::filesystem::path& folder, const std::string& run_id, const Task& task, const std::vector<int>& gpus);

  const evidence::ResultsLog& earlier() const { return earlier_; }
  const std::string& started_utc() const { return manifest_.started_utc; }
  const evidence::Manifest& manifest() const { return manifest_; }

  // Appends to results.jsonl, then writes the pair's own reports. Throws base::Error if the disk is full, or if the log was
  // removed or replaced.
  void add(const evidence::PairResult& result);
  // Appends to results.jsonl only, for results that need no reports of their own. Throws as above.
  void note(const evidence::PairResult& result);
  // Writes the pair's own reports of an earlier part, which may have ended after results.jsonl and before them.
  void restore(const evidence::PairResult& result) const;
  // The result of writing the suite's reports, and the whole run again if its folder was removed meanwhile.
  struct Closing {
    std::string trouble;              // why not all could be written where it belongs; empty: it was
    base::AppendFile::Place place{};  // place of the log; if other files have taken it, nothing was written
  };
  Closing finish(const evidence::SuiteResult& suite) const;

  // Returns the name of a pair's log, relative to the folder; its directory exists.
  std::string log_name(const Placement& placement) const;

 private:
  void write_settings() const;
  void write_anew(const evidence::SuiteResult& suite) const;
  void append(const std::string& line);

  std::filesystem::path folder_;
  std::string configuration_;  // the file's text
  std::string lines_;          // the log's text
  evidence::ResultsLog earlier_;
  evidence::Manifest manifest_;
  std::optional<base::AppendFile> log_;
};

evidence::ManifestGpu describe(const machine::Gpu& gpu);

// Returns a manifest without the run's name and start. `gpus`: ordinals of those the run may use.
evidence::Manifest make_manifest(const Task& task, const std::vector<int>& gpus);

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
