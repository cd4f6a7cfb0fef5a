// SPDX-License-Identifier: Apache-2.0
#include "cli/record_expectations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/recorded/counted.hpp"
#include "evidence/recorded/sweep.hpp"

namespace aisp::cli {
namespace {

using WideIntervals = std::map<std::string, std::string>;

// The last of several runs decides: intervals of the first ones alone are wide.
void tell_of_wide(const WideIntervals& wide) {
  for (const auto& [variant, sentence] : wide)
    if (!sentence.empty()) note("aisp: warning: " + sentence);
}

void record_run(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder,
                WideIntervals& wide) {
  const evidence::Recording recording = evidence::record(folder, suite, manifest);
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
