// SPDX-License-Identifier: Apache-2.0
#include "evidence/run_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "evidence/json.hpp"
#include "evidence/results_log.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;

namespace {

constexpr std::size_t largest_manifest_bytes = std::size_t{16} << 20;

// Chapter and name become parts of file names.
bool is_plain(const std::string& word) {
  return !word.empty() && word.size() <= 128 && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

void check_names(const PairResult& pair, const fs::path& file) {
  if (is_plain(pair.chapter) && is_plain(pair.name) && pair.target == pair.chapter + ":" + pair.name) return;
  throw Error{Exit::usage,
              fmt::format("{}: '{}' is not the target of chapter '{}' and name '{}'; the file was changed by hand", file.string(),
                          pair.target.substr(0, 80), pair.chapter.substr(0, 80), pair.name.substr(0, 80))};
}

Manifest read_manifest(const fs::path& file) {
  const nlohmann::json document = parse_json(base::read_file(file, largest_manifest_bytes), file.string());
  try {
    return document.get<Manifest>();
  } catch (const Error& error) {
    throw Error{Exit::usage, fmt::format("{}: {}", file.string(), error.what())};
  }
}

}  // namespace

RunRecord read_run(const fs::path& folder) {
  const fs::path results = folder / results_log_file;
  RunRecord run{.folder = folder, .manifest = read_manifest(folder / "manifest.json")};
  ResultsLog log = read_results_log(results);
  for (const PairResult& pair : log.results) check_names(pair, results);
  run.pairs = std::move(log.results);
  run.warnings = std::move(log.warnings);
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
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{artifacts, ignored}) {
    std::error_code error;
    const auto time = fs::last_write_time(entry.path() / results_log_file, error);
    if (!error && !entry.path().filename().string().starts_with("verify_")) found.emplace_back(time, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> runs;
  for (auto& [time, path] : found) runs.push_back(std::move(path));
  return runs;
}

}  // namespace aisp::evidence
