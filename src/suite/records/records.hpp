// SPDX-License-Identifier: Apache-2.0
// A run's files on disk, in the order in which they are written.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/system/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/results_log.hpp"
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

}  // namespace aisp::suite
