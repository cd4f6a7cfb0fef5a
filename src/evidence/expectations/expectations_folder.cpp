// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "evidence/expectations/expectations.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry{folder, error}; !error && entry != fs::directory_iterator{}; entry.increment(error))
    entries.push_back(entry->path());
  if (error) throw base::Error{base::Exit::usage, fmt::format("cannot read {}: {}", folder.string(), error.message())};
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

std::vector<Expectations> as_expectations(const std::vector<PairResult>& pairs, const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, Expectations> files;
  for (const PairResult& pair : pairs) {
    if (best_variant(pair) == nullptr) continue;
    const std::string hardware = hardware_key(pair, manifest);
    Expectations& file = files[{hardware, pair.chapter}];
    file.hardware = hardware;
    file.chapter = pair.chapter;
    file.pairs[label_in_run(pair).substr(pair.chapter.size() + 1)] = expected_of(pair, manifest, nullptr);
  }
  std::vector<Expectations> all;
  for (auto& [key, file] : files) all.push_back(std::move(file));
  return all;
}

std::vector<Expectations> read_all_expectations(const fs::path& folder) {
  std::vector<Expectations> all;
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return all;
  for (const fs::path& hardware : sorted_entries(folder)) {
    if (!fs::is_directory(hardware, ignored)) continue;
    for (const fs::path& file : sorted_entries(hardware)) {
      if (file.extension() != ".json") continue;
      std::optional<Expectations> found = read_expectations(file);
      if (found) all.push_back(std::move(*found));
    }
  }
  return all;
}

}  // namespace aisp::evidence
