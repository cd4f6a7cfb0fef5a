// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/installation.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"

namespace aisp::cli {

namespace {
constexpr const char* default_expectations_dir = "expectations";
}

std::string expectations_to_read(const std::string& named) {
  std::error_code ignored;
  if (!named.empty()) return named;
  if (std::filesystem::exists(default_expectations_dir, ignored)) return default_expectations_dir;
  const std::filesystem::path data = base::installed_data(base::self_path());
  return data.empty() ? default_expectations_dir : (data / default_expectations_dir).string();
}

std::string expectations_to_record(const std::string& named) { return named.empty() ? default_expectations_dir : named; }

std::vector<evidence::Expectations> read_recorded(const std::string& named) {
  std::error_code ignored;
  if (!named.empty() && !std::filesystem::is_directory(named, ignored))
    throw base::Error{base::Exit::usage,
                      fmt::format("{} is not a folder; name one that aisp run --update-expectations wrote", named)};
  return evidence::read_all_expectations(expectations_to_read(named));
}

std::vector<report::KnownPair> known_pairs() {
  std::vector<report::KnownPair> known;
  for (const pair::Entry& entry : pair::registry()) {
    report::KnownPair pair{std::string{entry.chapter}, std::string{entry.name}, std::string{entry.pair->teaches}, {}};
    for (const pair::CodeDigest& code : pair::code_of(entry).digests) pair.source_digests.emplace_back(code.digest);
    known.push_back(std::move(pair));
  }
  return known;
}

}  // namespace aisp::cli
