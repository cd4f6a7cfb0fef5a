// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"

namespace aisp::cli {
namespace {

std::vector<std::string> libraries_beside(const Pair& pair, const Variant& step) {
  std::vector<std::string> libraries;
  for (const Variant& library : pair.libraries)
    if (!library.changes_precision || step.changes_precision) libraries.emplace_back(library.name);
  return libraries;
}

std::vector<report::KnownPair::Step> steps_of(const Pair& pair) {
  std::vector<report::KnownPair::Step> steps;
  std::string_view before = pair.baseline.name;
  for (const Variant& step : pair.optimized) {
    steps.push_back(
        {std::string{step.name}, std::string{step.gains_over.empty() ? before : step.gains_over}, libraries_beside(pair, step)});
    before = step.name;
  }
  return steps;
}

constexpr const char* default_expectations_dir = "expectations";

}  // namespace

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

std::vector<evidence::RunRecord> read_found(const std::filesystem::path& folder) {
  try {
    return evidence::read_with_confirmations(folder);
  } catch (const base::Error& error) {
    note("aisp: warning: " + base::one_line(fmt::format("{} is left out: {}", folder.string(), error.what())));
    return {};
  }
}

std::vector<report::KnownPair> known_pairs() {
  std::vector<report::KnownPair> known;
  for (const pair::Entry& entry : pair::registry()) {
    report::KnownPair pair{.chapter = std::string{entry.chapter},
                           .name = std::string{entry.name},
                           .teaches = std::string{entry.pair->teaches},
                           .lesson = std::string{pair::lesson_of(*entry.pair)},
                           .steps = steps_of(*entry.pair),
                           .source_digests = {}};
    for (const pair::CodeDigest& code : pair::code_of(entry).digests) pair.source_digests.emplace_back(code.digest);
    known.push_back(std::move(pair));
  }
  return known;
}

}  // namespace aisp::cli
