// SPDX-License-Identifier: Apache-2.0
// What a run leaves on disk, in the order in which it comes into being.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/results_log.hpp"
#include "suite/suite.hpp"

namespace aisp::suite {

inline constexpr const char* configuration_file = "effective_configuration.json";
inline constexpr const char* manifest_file = "manifest.json";

class Records {
 public:
  // Reads what an earlier part of the run left, writes manifest and effective configuration, and opens results.jsonl. Throws
  // base::Error when the folder cannot be written or its results.jsonl is damaged beyond its last line.
  Records(const std::filesystem::path& folder, const std::string& run_id, const Task& task, const std::vector<int>& gpus);

  const evidence::ResultsLog& earlier() const { return earlier_; }
  const std::string& started_utc() const { return manifest_.started_utc; }
  const evidence::Manifest& manifest() const { return manifest_; }

  // Appends to results.jsonl, then writes the pair's own reports. Throws base::Error when the disk is full.
  void add(const evidence::PairResult& result);
  // The pair's own reports of an earlier part, which may have ended between results.jsonl and them.
  void restore(const evidence::PairResult& result) const;
  // The suite's reports.
  void finish(const evidence::SuiteResult& suite) const;

  // Of a pair's log, relative to the folder; its directory exists.
  std::string log_name(const Placement& placement) const;

 private:
  std::filesystem::path folder_;
  evidence::ResultsLog earlier_;
  evidence::Manifest manifest_;
  base::AppendFile log_;
};

}  // namespace aisp::suite
