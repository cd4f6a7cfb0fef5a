// SPDX-License-Identifier: Apache-2.0
#include "cli/regression_gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "evidence/comparison/comparison.hpp"
#include "report/analysis/comparison.hpp"
#include "suite/selection/select.hpp"
#include "suite/side_by_side.hpp"

namespace aisp::cli {

using base::Error;
using base::Exit;

namespace {

namespace fs = std::filesystem;

// Returns the selected targets that only the other executable has.
std::vector<std::string> only_there(const run::Counterpart& other, const suite::Task& task) {
  std::vector<std::string> missing;
  std::vector<pair::Entry> theirs;
  for (const std::string& target : other.targets) {
    const std::size_t colon = std::min(target.find(':'), target.size() - 1);
    theirs.push_back({std::string_view{target}.substr(0, colon), std::string_view{target}.substr(colon + 1), {}, nullptr});
  }
  const std::vector<std::string> all{"all"};
  for (const std::string& wanted : task.wanted.empty() ? all : task.wanted) {
    try {
      for (const pair::Entry* entry : suite::select(theirs, {wanted})) missing.push_back(entry->target());
    } catch (const Error&) {
      // The other executable has nothing of that name, which its absence from the comparison says.
    }
  }
  std::erase_if(missing, [](const std::string& target) {
    return std::ranges::any_of(pair::registry(), [&](const pair::Entry& own) { return own.target() == target; });
  });
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

// Both sides' processes, those of the confirming run behind those of the first.
evidence::Comparison analyze_runs(const std::vector<fs::path>& runs, double threshold) {
  std::vector<evidence::RunRecord> before, after;
  for (const fs::path& run : runs) {
    for (const auto& [folder, side] : {std::pair{run / suite::against_folder, &before}, std::pair{run, &after}}) {
      side->push_back(evidence::read_run(folder));
      side->push_back(evidence::read_run(suite::second_process(folder)));
    }
  }
  return evidence::compare_sides(before, after, threshold);
}

bool broke_something(const evidence::Comparison& comparison) {
  return std::ranges::any_of(comparison.statuses, [](const evidence::StatusChange& status) {
    return status.before == evidence::Status::passed && status.after != evidence::Status::skipped;
  });
}

std::string verdict(const evidence::Comparison& comparison, const std::vector<std::string>& slower, double threshold_percent) {
  std::set<std::string> compared;
  for (const evidence::MetricChange& metric : comparison.metrics) compared.insert(metric.target);
  const std::string text = fmt::format("{} compared with the other executable in turns: ", base::plural(compared.size(), "pair"));
  if (slower.empty()) return text + fmt::format("none is slower by {:.3g} % or more\n", threshold_percent);
  return text + fmt::format("slower: {}\n", base::join(slower, ", "));
}

}  // namespace

Exit run_against(const suite::Task& task, const suite::Finished& finished, const Gate& gate, suite::Watcher& watcher,
                 const base::Painter& paint, bool json_only) {
  if (finished.suite.interrupted) return Exit::interrupted;
  const double threshold = threshold_of(gate.threshold_percent);
  std::vector<fs::path> runs{finished.folder};
  evidence::Comparison comparison = analyze_runs(runs, threshold);
  std::vector<std::string> slower = slower_targets(comparison);
  if (!slower.empty()) {
    note(fmt::format("aisp: {} may be slower; measuring both again", base::plural(slower.size(), "pair")));
    const suite::Finished rerun = suite::run_suite(
        rerun_of(task, {slower.begin(), slower.end()}),
        suite::RunFolder::create(finished.folder, {}, base::join(task.command_line, " "), evidence::confirmation_prefix),
        watcher);
    if (!rerun.storage_trouble.empty()) throw Error{Exit::unfit, rerun.storage_trouble};
    if (rerun.suite.interrupted) return Exit::interrupted;
    runs.push_back(rerun.folder);
    comparison = analyze_runs(runs, threshold);
    slower = slower_targets(comparison);
  }
  comparison.only_before = only_there(*task.against, task);
  const fs::path document = finished.folder / suite::against_folder / "comparison.json";
  base::write_atomically(document, report::comparison_json({comparison}, threshold));
  const auto rows = report::comparison_rows(comparison, false, threshold, json_only ? base::Painter{} : paint);
  const std::string text = (rows.size() > 1 ? columns(rows) : std::string{}) + report::comparison_notes(comparison) +
                           verdict(comparison, slower, gate.threshold_percent);
  if (!json_only) show(text);
  else
    for (const std::string& line : base::split(base::trim(text), '\n')) note(line);
  if (finished.status != Exit::good) return finished.status;
  if (broke_something(comparison)) return Exit::failed;
  if (!slower.empty()) return Exit::regression;
  if (!comparison.metrics.empty()) return Exit::good;
  note("aisp: no pair was measured with both executables, so this run says nothing about regressions");
  return Exit::nothing;
}

}  // namespace aisp::cli
