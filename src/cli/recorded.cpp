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

namespace aisp::cli {
namespace {

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
    note(fmt::format("aisp: recorded {} in {}, for pictures (scripts/pages); their points are no expectations: {}",
                     base::plural(sweeps.size(), "sweep"), folder, base::join(sweeps, ", ")));
  if (!counted.empty())
    note(fmt::format("aisp: recorded the counters of {} in {}, for the chapters' READMEs (scripts/pages)",
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
