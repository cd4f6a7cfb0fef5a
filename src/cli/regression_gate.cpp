// SPDX-License-Identifier: Apache-2.0
#include "cli/regression_gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/text.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "report/analysis/analysis.hpp"

namespace aisp::cli {

using base::Error;
using base::Exit;

namespace {

std::set<std::string> unconfirmed(const evidence::Analysis& analysis) {
  std::set<std::string> targets;
  for (const evidence::AnalysisRow& row : analysis.rows)
    if (is_regressed(row) && !row.confirmed) targets.insert(row.target);
  return targets;
}

evidence::Analysis analyze_run(const suite::Finished& finished, const Gate& gate) {
  evidence::ExpectationFolder expectations = open_expectations(gate.expectations_dir);
  const evidence::AnalysisOptions options{.threshold = threshold_of(gate.threshold_percent), .require_confirmation = true};
  return evidence::analyze(evidence::read_with_confirmations(finished.folder), expectations, options);
}

std::string why_nothing_was_compared(const evidence::Analysis& analysis) {
  std::set<std::string_view> reasons;
  for (const evidence::AnalysisRow& row : analysis.rows) switch (row.finding) {
      case evidence::Finding::fresh: reasons.insert("no expectation of this hardware"); break;
      case evidence::Finding::other_machine: reasons.insert("expectations of other machines only"); break;
      case evidence::Finding::stale: reasons.insert("expectations of other code only"); break;
      case evidence::Finding::skipped: reasons.insert("pairs that did not run or must not be compared"); break;
      default: reasons.insert("results that are missing or wrong");
    }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace

evidence::ExpectationFolder open_expectations(const std::string& named) {
  const std::string folder = expectations_to_read(named);
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    throw Error{Exit::usage, fmt::format("{}: there are no expectations to compare with; record them with "
                                         "aisp run --update-expectations, or name their folder with --expectations-dir",
                                         folder)};
  return evidence::ExpectationFolder{folder};
}

double threshold_of(double percent) {
  if (!std::isfinite(percent) || percent < 0 || percent >= 100)
    throw Error{Exit::usage, fmt::format("--threshold {}: must be a percentage of at least 0 and below 100", percent)};
  return percent / 100;
}

suite::Task rerun_of(const suite::Task& task, const std::set<std::string>& targets) {
  std::vector<const pair::Entry*> selected = task.selected;
  std::erase_if(selected, [&](const pair::Entry* entry) { return !targets.contains(entry->target()); });
  suite::Configuration configuration = task.configuration;
  configuration.iterations *= 2;
  configuration.budget_s *= 2;
  configuration.timeout_multiplier *= 2;
  // Other inputs, so that a loss which one draw causes is not confirmed.
  configuration.seed = suite::drawn_seed();
  suite::Task rerun = suite::make_task(std::move(selected), std::move(configuration), task.machine, task.command_line);
  rerun.against = task.against;
  rerun.wanted = task.wanted;
  return rerun;
}

std::string analysis_table(const evidence::Analysis& analysis, const base::Painter& paint) {
  if (analysis.rows.empty()) return {};
  return columns(report::analysis_rows(analysis, paint)) + report::analysis_reasons(analysis);
}

void note_warnings(const evidence::Analysis& analysis) {
  for (const std::string& warning : analysis.warnings) note("aisp: " + warning);
  if (analysis.rows.empty() || std::ranges::any_of(analysis.rows, evidence::was_compared)) return;
  note(
      fmt::format("aisp: nothing was compared ({}), so this run says nothing about regressions: exit status {}, unless something "
                  "worse is above; {}",
                  why_nothing_was_compared(analysis), static_cast<int>(Exit::nothing),
                  "aisp run --update-expectations records what passes here"));
}

Exit run_gate(const suite::Task& task, const suite::Finished& finished, const Gate& gate, suite::Watcher& watcher,
              const base::Painter& paint, bool json_only) {
  evidence::Analysis analysis = analyze_run(finished, gate);
  if (const auto targets = unconfirmed(analysis); !targets.empty() && !finished.suite.interrupted) {
    note(fmt::format("aisp: {} may have regressed; measuring again", base::plural(targets.size(), "pair")));
    const suite::Finished rerun = suite::run_suite(
        rerun_of(task, targets),
        suite::RunFolder::create(finished.folder, {}, base::join(task.command_line, " "), evidence::confirmation_prefix),
        watcher);
    if (!rerun.storage_trouble.empty()) throw Error{Exit::unfit, rerun.storage_trouble};
    if (rerun.suite.interrupted) return Exit::interrupted;
    analysis = analyze_run(finished, gate);
  }
  const std::string text = analysis_table(analysis, json_only ? base::Painter{} : paint) + report::analysis_summary(analysis);
  if (!json_only) show(text);
  else
    for (const std::string& line : base::split(base::trim(text), '\n')) note(line);
  note_warnings(analysis);
  return finished.status == Exit::good ? exit_status(analysis) : finished.status;
}

}  // namespace aisp::cli
