// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/recorded/counted.hpp"
#include "evidence/recorded/sweep.hpp"
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

using WideIntervals = std::map<std::string, std::string>;

// The last of several runs decides: intervals of the first ones alone are wide.
void tell_of_wide(const WideIntervals& wide) {
  for (const auto& [variant, sentence] : wide)
    if (!sentence.empty()) note("aisp: warning: " + sentence);
}

void record_run(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder,
                WideIntervals& wide) {
  const evidence::ExpectationUpdate recording = evidence::record(folder, suite, manifest);
  const std::vector<std::string> sweeps = evidence::record_sweeps(folder, suite, manifest);
  const std::vector<std::string> counted = evidence::record_counters(folder, suite, manifest);
  std::size_t skipped = 0;
  for (const auto& [label, why] : recording.left_out) {
    const auto of_label = [&name = label](const evidence::PairResult& pair) { return label_in_run(pair) == name; };
    const auto pair = std::find_if(suite.pairs.begin(), suite.pairs.end(), of_label);
    if (pair != suite.pairs.end() && !pair->sweep_case.empty() && std::ranges::find(sweeps, pair->target) != sweeps.end())
      continue;
    if (pair != suite.pairs.end() && pair->status == evidence::Status::skipped) ++skipped;
    else note(fmt::format("aisp: {} is not recorded: {}", label, why));
  }
  for (const std::string& doubt : recording.far) note("aisp: warning: " + doubt);
  for (const auto& [variant, sentence] : recording.wide) wide[variant] = sentence;
  if (!sweeps.empty())
    note(fmt::format("aisp: recorded {} in {}, for pictures (aisp report --pictures); their points are no expectations: {}",
                     base::plural(sweeps.size(), "sweep"), folder, base::join(sweeps, ", ")));
  if (!counted.empty())
    note(fmt::format("aisp: recorded the counters of {} in {}, for the chapters' READMEs (aisp report --chapter-tables)",
                     base::plural(counted.size(), "pair"), folder));
  note(fmt::format("aisp: recorded {} in {}{}", base::plural(recording.recorded.size(), "expectation"), folder,
                   skipped == 0 ? "" : fmt::format(" ({} skipped)", skipped)));
}

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

void record_expectations(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder) {
  WideIntervals wide;
  record_run(suite, manifest, folder, wide);
  tell_of_wide(wide);
}

void record_expectations(std::span<const evidence::RunRecord> runs, const std::string& folder) {
  WideIntervals wide;
  for (const evidence::RunRecord& run : runs)
    record_run({.run_id = run.manifest.run_id, .pairs = run.pairs}, run.manifest, folder, wide);
  tell_of_wide(wide);
}

}  // namespace aisp::cli
