// SPDX-License-Identifier: Apache-2.0
#include "cli/recorded.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/comparison/comparison.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/recorded/recorded.hpp"
#include "report/analysis/analysis.hpp"
#include "suite/selection.hpp"
#include "suite/side_by_side.hpp"

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

using base::Error;
using base::Exit;

namespace {

namespace fs = std::filesystem;

std::set<std::string> unconfirmed(const evidence::Analysis& analysis) {
  std::set<std::string> targets;
  for (const evidence::AnalysisRow& row : analysis.rows)
    if (is_regressed(row) && !row.confirmed) targets.insert(row.target);
  return targets;
}

evidence::Analysis analyze_run(const suite::Finished& finished, const GateOptions& gate) {
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

// Returns the task for these targets alone, with twice the rounds and the time for them.
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

// Measures the targets again into a folder inside the run's; returns nothing if the user interrupts it.
std::optional<fs::path> measure_again(const suite::Task& task, const suite::Finished& finished,
                                      const std::set<std::string>& targets, suite::Watcher& watcher) {
  const suite::Finished rerun = suite::run_suite(
      rerun_of(task, targets),
      suite::RunFolder::create(finished.folder, {}, base::join(task.command_line, " "), evidence::confirmation_prefix), watcher);
  if (!rerun.storage_trouble.empty()) throw Error{Exit::unfit, rerun.storage_trouble};
  return rerun.suite.interrupted ? std::nullopt : std::optional{rerun.folder};
}

void show_gate(const std::string& text, bool json_only) {
  if (!json_only) return show(text);
  for (const std::string& line : base::split(base::trim(text), '\n')) note(line);
}

// Returns the selected targets that only the other executable has.
std::vector<std::string> only_there(const run::Counterpart& other, const suite::Task& task) {
  std::vector<pair::Entry> theirs;
  for (const std::string& target : other.targets) {
    const std::size_t colon = std::min(target.find(':'), target.size() - 1);
    if (std::ranges::none_of(pair::registry(), [&](const pair::Entry& own) { return own.target() == target; }))
      theirs.push_back({std::string_view{target}.substr(0, colon), std::string_view{target}.substr(colon + 1), {}, nullptr});
  }
  std::set<std::string> missing;
  for (const std::string& wanted : task.wanted.empty() ? std::vector<std::string>{"all"} : task.wanted) {
    try {
      for (const pair::Entry* entry : suite::select(theirs, {wanted})) missing.insert(entry->target());
    } catch (const Error&) {
      // The other executable alone has nothing of that name.
    }
  }
  return {missing.begin(), missing.end()};
}

// Compares the processes of both sides, those of the confirming run after those of the first.
evidence::RunComparison compare_sides_of(const std::vector<fs::path>& runs, double threshold) {
  std::vector<evidence::RunRecord> before, after;
  for (const fs::path& run : runs) {
    for (const auto& [folder, side] : {std::pair{run / suite::against_folder, &before}, std::pair{run, &after}}) {
      side->push_back(evidence::read_run(folder));
      side->push_back(evidence::read_run(suite::second_process(folder)));
    }
  }
  return evidence::compare_sides(before, after, threshold);
}

std::string verdict(const evidence::RunComparison& comparison, const std::set<std::string>& slower, double threshold_percent) {
  std::set<std::string> compared;
  for (const evidence::MetricChange& metric : comparison.metrics) compared.insert(metric.target);
  const std::string text = fmt::format("{} compared with the other executable in turns: ", base::plural(compared.size(), "pair"));
  if (slower.empty()) return text + fmt::format("none is slower by {:.3g} % or more\n", threshold_percent);
  return text + fmt::format("slower: {}\n", fmt::join(slower, ", "));
}

Exit gate_against(const suite::Task& task, const suite::Finished& finished, const GateOptions& gate, suite::Watcher& watcher,
                  const base::Painter& paint, bool json_only) {
  if (finished.suite.interrupted) return Exit::interrupted;
  const double threshold = threshold_of(gate.threshold_percent);
  std::vector<fs::path> runs{finished.folder};
  evidence::RunComparison comparison = compare_sides_of(runs, threshold);
  std::set<std::string> slower = slower_targets(comparison);
  if (!slower.empty()) {
    note(fmt::format("aisp: {} may be slower; measuring both again", base::plural(slower.size(), "pair")));
    const std::optional<fs::path> rerun = measure_again(task, finished, slower, watcher);
    if (!rerun) return Exit::interrupted;
    runs.push_back(*rerun);
    comparison = compare_sides_of(runs, threshold);
    slower = slower_targets(comparison);
  }
  comparison.only_before = only_there(*task.against, task);
  const fs::path document = finished.folder / suite::against_folder / "comparison.json";
  base::write_atomically(document, report::comparison_json({comparison}));
  const auto rows = report::comparison_rows(comparison, false, paint);
  show_gate((rows.size() > 1 ? columns(rows) : std::string{}) + report::comparison_notes(comparison) +
                verdict(comparison, slower, gate.threshold_percent),
            json_only);
  if (finished.status != Exit::good) return finished.status;
  if (broke_something(comparison)) return Exit::failed;
  if (!slower.empty()) return Exit::regression;
  if (!comparison.metrics.empty()) return Exit::good;
  note("aisp: no pair was measured with both executables, so this run says nothing about regressions");
  return Exit::nothing;
}

Exit gate_expectations(const suite::Task& task, const suite::Finished& finished, const GateOptions& gate, suite::Watcher& watcher,
                       const base::Painter& paint, bool json_only) {
  evidence::Analysis analysis = analyze_run(finished, gate);
  if (const auto targets = unconfirmed(analysis); !targets.empty() && !finished.suite.interrupted) {
    note(fmt::format("aisp: {} may have regressed; measuring again", base::plural(targets.size(), "pair")));
    if (!measure_again(task, finished, targets, watcher)) return Exit::interrupted;
    analysis = analyze_run(finished, gate);
  }
  show_gate(analysis_table(analysis, paint) + report::analysis_summary(analysis), json_only);
  note_warnings(analysis);
  return finished.status == Exit::good ? exit_status(analysis) : finished.status;
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

Exit run_gate(const suite::Task& task, const suite::Finished& finished, const GateOptions& gate, suite::Watcher& watcher,
              const base::Painter& paint, bool json_only) {
  return (task.against ? gate_against : gate_expectations)(task, finished, gate, watcher, json_only ? base::Painter{} : paint,
                                                           json_only);
}

}  // namespace aisp::cli
