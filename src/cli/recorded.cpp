// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"

namespace aisp::cli {

std::vector<evidence::Expectations> read_recorded(const std::string& folder) {
  std::error_code ignored;
  if (folder != default_expectations_dir && !std::filesystem::is_directory(folder, ignored))
    throw base::Error{base::Exit::usage,
                      fmt::format("{} is not a folder; name one that aisp run --update-expectations wrote", folder)};
  return evidence::read_all_expectations(folder);
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
