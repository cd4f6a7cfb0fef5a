// SPDX-License-Identifier: Apache-2.0
#include "evidence/run_record.hpp"

#include <algorithm>

#include "evidence/ceilings.hpp"
#include "evidence/results_log.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

RunRecord read_run(const fs::path& folder) {
  RunRecord run{.folder = folder, .manifest = read_manifest(folder / "manifest.json")};
  ResultsLog log = read_results_log(folder / results_log_file);
  run.pairs = std::move(log.results);
  run.warnings = std::move(log.warnings);
  raise_guessed_ceilings(run.pairs);
  return run;
}

std::vector<RunRecord> read_with_confirmations(const fs::path& folder) {
  std::vector<RunRecord> runs{read_run(folder)};
  std::vector<fs::path> reruns;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{folder, ignored})
    if (entry.path().filename().string().starts_with(confirmation_prefix) && fs::exists(entry.path() / results_log_file, ignored))
      reruns.push_back(entry.path());
  std::sort(reruns.begin(), reruns.end());
  for (const fs::path& rerun : reruns) {
    runs.push_back(read_run(rerun));
    runs.back().confirmation = true;
  }
  return runs;
}

std::vector<fs::path> timed_runs(const fs::path& artifacts) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{artifacts, ignored}) {
    std::error_code error;
    if (!fs::exists(entry.path() / results_log_file, error)) continue;
    // A damaged log stays in the list, so that its reader reports it.
    const auto header = try_read_log_header(entry.path() / results_log_file);
    if (!header || header->command != LogCommand::verify) found.emplace_back(header ? header->started_utc : "", entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> runs;
  for (auto& [started_utc, path] : found) runs.push_back(std::move(path));
  return runs;
}

}  // namespace aisp::evidence
