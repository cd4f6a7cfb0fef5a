// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "evidence/comparison/comparison.hpp"
#include "report/analysis/analysis.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::cli {
namespace {

using base::Exit;
using evidence::Change;
using evidence::MetricChange;
using evidence::RunComparison;

struct CompareOptions {
  std::vector<std::string> runs;
  std::string artifacts_dir = "artifacts", expectations_dir;
  double threshold_percent = 5;
  bool all = false, raw = false;
  std::string json;
  std::string color = "auto";
};

Exit status_of(const RunComparison& comparison) {
  if (!comparison.run.empty()) return comparison.metrics.empty() ? Exit::nothing : Exit::good;
  if (comparison.metrics.empty() && comparison.statuses.empty()) return Exit::nothing;
  if (broke_something(comparison)) return Exit::failed;
  const bool regressed = std::any_of(comparison.metrics.begin(), comparison.metrics.end(),
                                     [](const MetricChange& metric) { return metric.is_regression; });
  return regressed ? Exit::regression : Exit::good;
}

// Whether a change counts as a regression; a reading without an interval and a number of another machine are only shown.
bool counts(const RunComparison& comparison, const MetricChange& metric) {
  return metric.change != Change::worse || metric.is_regression || !comparison.run.empty();
}

std::string summary(const RunComparison& comparison) {
  const auto count = [&](Change change) {
    return std::count_if(comparison.metrics.begin(), comparison.metrics.end(),
                         [&](const MetricChange& metric) { return metric.change == change && counts(comparison, metric); });
  };
  const auto shown = std::count_if(comparison.metrics.begin(), comparison.metrics.end(),
                                   [&](const MetricChange& metric) { return !counts(comparison, metric); });
  return fmt::format("{} compared: {} worse, {} slightly or perhaps worse, {} better, {} slightly or perhaps better{}{}\n",
                     base::plural(comparison.metrics.size(), "value"), count(Change::worse), count(Change::slightly_worse),
                     count(Change::better), count(Change::slightly_better),
                     shown == 0 ? "" : fmt::format("; {} worse that decide nothing", shown),
                     comparison.same_hardware ? "" : "; the hardware is not the same");
}

// Uses recorded runs, where there are any, to know how processes differ; without them the rule for two runs alone holds.
std::vector<RunComparison> comparisons_of(const std::vector<evidence::RunRecord>& runs, double threshold,
                                          const std::string& recordings) {
  if (runs.size() == 1) return {compare_variants(runs[0], threshold)};
  evidence::ExpectationFolder recorded{expectations_to_read(recordings)};
  std::vector<RunComparison> comparisons;
  for (std::size_t i = 1; i < runs.size(); ++i) comparisons.push_back(compare_runs(runs[0], runs[i], threshold, &recorded));
  return comparisons;
}

std::string text_of(const RunComparison& comparison, bool all, const base::Painter& paint) {
  const auto rows = report::comparison_rows(comparison, all, paint);
  return report::comparison_heading(comparison) + (rows.size() > 1 ? columns(rows) : std::string{}) + summary(comparison) +
         report::comparison_notes(comparison);
}

// Returns the worst of all; `nothing` only if no run has anything in common with the first.
Exit status_of(const std::vector<RunComparison>& comparisons) {
  Exit worst = Exit::nothing;
  for (const RunComparison& comparison : comparisons) {
    const Exit status = status_of(comparison);
    if (status == Exit::failed) return status;
    if (status == Exit::regression || worst == Exit::nothing) worst = status;
  }
  return worst;
}

Exit compare(const CompareOptions& options) {
  if (options.raw && options.json.empty())
    throw base::Error{Exit::usage, "--raw adds samples to the JSON: name its file with --json"};
  const base::Painter paint{color_flag(options.color), STDOUT_FILENO};
  const double threshold = threshold_of(options.threshold_percent);
  std::vector<evidence::RunRecord> runs;
  for (const std::string& run : options.runs) runs.push_back(evidence::read_run(suite::find_run(options.artifacts_dir, run)));
  for (const evidence::RunRecord& run : runs)
    for (const std::string& warning : run.warnings) note("aisp: " + warning);
  const std::vector<RunComparison> comparisons = comparisons_of(runs, threshold, options.expectations_dir);
  if (!options.json.empty()) print_to(options.json, report::comparison_json(comparisons, options.raw));
  if (options.json == "-") return status_of(comparisons);
  std::string text, overall;
  for (const RunComparison& comparison : comparisons) {
    if (comparisons.size() > 1) text += paint(base::Style::bold, report::comparison_title(comparison)) + '\n';
    text += text_of(comparison, options.all, paint);
    if (comparisons.size() > 1) text += '\n';
    overall += report::overall_text(comparison);
  }
  show(text + overall);
  return status_of(comparisons);
}

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "compare runs over all metrics, or baseline with optimized in one");
  command->add_option("RUN", options->runs, "a run and those to compare with it, or one alone: names, folders or latest")
      ->type_name("")
      ->required();
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  add_number(*command, "--threshold", options->threshold_percent, "change that counts, in percent [5]")->type_name("PERCENT");
  command->add_option("--expectations-dir", options->expectations_dir, expectations_to_read_help)->type_name("DIR");
  command->add_flag("--all", options->all, "also what did not change");
  command->add_option("--json", options->json, "the comparison as JSON, '-' for the standard output")->type_name("FILE");
  command->add_flag("--raw", options->raw, "with --json: also the samples of both sides, as they were read");
  command->add_option("--color", options->color, "auto, always or never [auto]")->type_name("WHEN");
  command->footer(
      "Exit status: 0 good, 1 what passed before no longer does, 3 something is worse on the same machine, 5 nothing in "
      "common.");
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace aisp::cli
