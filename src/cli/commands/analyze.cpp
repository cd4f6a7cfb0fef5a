// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "cli/regression_gate.hpp"
#include "evidence/comparison/history.hpp"
#include "report/analysis/analysis.hpp"
#include "report/analysis/comparison.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;
using evidence::Finding;
using evidence::RunRecord;

struct AnalyzeOptions {
  std::vector<std::string> runs, only;
  std::string artifacts_dir = "artifacts";
  Gate gate;
  bool strict = false, require_confirmation = false;
  bool history = false, all = false;
  bool update_expectations = false;
  bool github = false;
  std::string csv, junit, json, github_action_benchmark, google_benchmark;
  std::string color = "auto";
};

std::vector<fs::path> folders_of(const AnalyzeOptions& options) {
  std::vector<fs::path> folders;
  for (const std::string& run : options.runs)
    if (run != "latest") folders.push_back(suite::find_run(options.artifacts_dir, run));
  if (!folders.empty() && folders.size() == options.runs.size()) return folders;
  const std::vector<fs::path> found = evidence::timed_runs(options.artifacts_dir);
  if (found.empty())
    throw Error{Exit::usage,
                fmt::format("there is no run below {}; name one, or its place with --artifacts-dir", options.artifacts_dir)};
  if (options.history && options.runs.empty()) return found;
  folders.push_back(found.back());
  return folders;
}

// `found`: the user named none of these folders.
std::vector<RunRecord> read_runs(const std::vector<fs::path>& folders, bool found) {
  std::vector<RunRecord> runs;
  std::vector<fs::path> seen;
  for (const fs::path& folder : folders) {
    // The same run named twice would confirm itself.
    const fs::path real = fs::weakly_canonical(folder);
    if (std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
    seen.push_back(real);
    for (RunRecord& run : found ? read_found(folder) : evidence::read_with_confirmations(folder)) runs.push_back(std::move(run));
  }
  return runs;
}

Exit show_history(const AnalyzeOptions& options, const std::vector<RunRecord>& runs) {
  const std::vector<evidence::Series> history = evidence::history(runs);
  if (!options.json.empty()) print_to(options.json, report::history_json(history));
  if (history.empty()) {
    note("aisp: no run holds a timed pair");
    return Exit::nothing;
  }
  const auto is_single = [](const evidence::Series& series) { return series.run_ids.size() < 2; };
  if (runs.size() > 1 && std::ranges::all_of(history, is_single))
    note(fmt::format(
        "aisp: warning: no series has two of the {} runs: each is of other pairs, or names another host; give containers "
        "one name (docker run --hostname)",
        runs.size()));
  if (options.json != "-") show(columns(report::history_rows(history, options.all)) + report::history_notes(history));
  return Exit::good;
}

void write_files(const AnalyzeOptions& options, const evidence::Analysis& analysis) {
  if (!options.csv.empty()) print_to(options.csv, report::proof_of_benefit_csv(analysis));
  if (!options.junit.empty()) print_to(options.junit, report::junit_xml(analysis));
  if (!options.github_action_benchmark.empty())
    print_to(options.github_action_benchmark, report::github_action_benchmark(analysis));
  if (!options.json.empty()) print_to(options.json, report::analysis_json(analysis));
}

// Nothing else may be on the standard output beside a file that was sent there.
bool uses_standard_output(const AnalyzeOptions& options) {
  for (const std::string* file :
       {&options.csv, &options.junit, &options.json, &options.github_action_benchmark, &options.google_benchmark})
    if (*file == "-") return true;
  return false;
}

// Two documents in one file, or in one stream, are none.
void demand_different_places(const AnalyzeOptions& options) {
  std::map<std::string, const char*> flags;
  for (const auto& [flag, place] : {std::pair{"--output-csv", &options.csv},
                                    {"--junit", &options.junit},
                                    {"--json", &options.json},
                                    {"--github-action-benchmark", &options.github_action_benchmark},
                                    {"--google-benchmark", &options.google_benchmark}}) {
    if (place->empty()) continue;
    if (const auto [earlier, added] = flags.emplace(*place, flag); !added)
      throw Error{Exit::usage, fmt::format("{} and {} both write to {}; give one of them another place", earlier->second, flag,
                                           *place == "-" ? "the standard output" : *place)};
  }
}

// Whether the times alone are wanted, which are there without anything to compare them with.
bool wants_times_alone(const AnalyzeOptions& options) {
  std::error_code ignored;
  return !options.google_benchmark.empty() && options.gate.expectations_dir.empty() && options.csv.empty() &&
         options.junit.empty() && options.json.empty() && options.github_action_benchmark.empty() && !options.github &&
         !fs::is_directory(expectations_to_read(options.gate.expectations_dir), ignored);
}

Finding finding_of(const std::string& word) {
  std::vector<std::string> words;
  for (const Finding finding : evidence::all_findings()) {
    if (to_string(finding) == word) return finding;
    words.emplace_back(to_string(finding));
  }
  throw Error{Exit::usage,
              fmt::format("--only '{}' is no finding; there are {}", base::one_line(word, 40), base::join(words, ", "))};
}

std::set<Finding> findings_of(const std::vector<std::string>& given) {
  std::set<Finding> findings;
  for (const std::string& value : given)
    for (const std::string& word : base::split(value, ',')) findings.insert(finding_of(std::string{base::trim(word)}));
  return findings;
}

// The rows that are wanted, below them what all rows are.
std::string text_of(const evidence::Analysis& analysis, const std::set<Finding>& only, const base::Painter& paint) {
  evidence::Analysis wanted{.rows = analysis.rows};
  std::erase_if(wanted.rows, [&](const evidence::AnalysisRow& row) { return !only.empty() && !only.contains(row.finding); });
  return analysis_table(wanted, paint) + report::analysis_summary(analysis);
}

Exit analyze(const AnalyzeOptions& options) {
  const std::set<Finding> only = findings_of(options.only);
  const base::Painter paint{color_flag(options.color), STDOUT_FILENO};
  const double threshold = threshold_of(options.gate.threshold_percent);
  demand_different_places(options);
  const std::vector<RunRecord> runs = read_runs(folders_of(options), options.history && options.runs.empty());
  if (options.history) return show_history(options, runs);
  if (options.update_expectations) {
    record_expectations(runs, expectations_to_record(options.gate.expectations_dir));
    return Exit::good;
  }
  if (!options.google_benchmark.empty()) print_to(options.google_benchmark, report::google_benchmark(runs));
  if (wants_times_alone(options)) return Exit::good;
  evidence::ExpectationFolder expectations = open_expectations(options.gate.expectations_dir);
  const evidence::Analysis analysis =
      evidence::analyze(runs, expectations,
                        {.threshold = threshold, .strict = options.strict, .require_confirmation = options.require_confirmation});
  write_files(options, analysis);
  if (!uses_standard_output(options)) {
    show(text_of(analysis, only, paint));
    if (options.github) print(report::github_annotations(analysis));
  }
  note_warnings(analysis);
  return exit_status(analysis);
}

void add_outputs(CLI::App& command, AnalyzeOptions& options) {
  const auto add_file = [&](const char* name, std::string& file, const char* help) -> CLI::Option& {
    return *command.add_option(name, file, help)->type_name("FILE")->group("Output");
  };
  add_file("--output-csv", options.csv,
           "one row a variant, as docs/report-formats.md describes; without FILE reports/proof_of_benefit.csv")
      .expected(0, 1)
      ->default_str("reports/proof_of_benefit.csv");
  add_file("--junit", options.junit, "JUnit XML");
  add_file("--json", options.json, "the analysis as JSON; '-' is the standard output, for every FILE here");
  add_file("--github-action-benchmark", options.github_action_benchmark, "speedups for that action, tool customBiggerIsBetter");
  add_file("--google-benchmark", options.google_benchmark, "times as Google Benchmark's JSON, which needs no expectations");
  command.add_flag("--github", options.github, "annotations for GitHub Actions after the table")->group("Output");
  command.add_option("--color", options.color, "auto, always or never [auto]")->type_name("WHEN")->group("Output");
}

}  // namespace

void add_analyze(CLI::App& app, Action& action) {
  auto options = std::make_shared<AnalyzeOptions>();
  CLI::App* command = app.add_subcommand("analyze", "compare runs with recorded expectations; several runs count as one");
  command->add_option("RUN", options->runs, "runs by name or folder, or latest [latest]")->type_name("");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  command->add_option("--expectations-dir", options->gate.expectations_dir, expectations_to_read_help)->type_name("DIR");
  add_number(*command, "--threshold", options->gate.threshold_percent, "loss of speedup that is a regression, in percent [5]")
      ->type_name("PERCENT");
  command->add_flag("--require-confirmation", options->require_confirmation,
                    "a regression counts only when two measurements show it");
  command->add_flag("--strict", options->strict, "slower, drifted, stale and pairs that no longer run count as regressions too");
  add_repeated(*command, "--only", options->only, "FINDING,...",
               "show rows of these findings only, as in regressed,failed; files and exit status are of all");
  CLI::Option* update =
      command->add_flag("--update-expectations", options->update_expectations,
                        "record what the runs measured instead, in the order given, beside what was recorded of the same code");
  CLI::Option* history =
      command->add_flag("--history", options->history, "lasting changes over many runs instead; without RUN over all");
  command->add_flag("--all", options->all, "with --history: also series of times without a change")->needs(history);
  add_outputs(*command, *options);
  // Three answers; what only one of them heeds must not be taken for heeded.
  update->excludes(history)->excludes("--json");
  for (const char* of_the_comparison : {"--threshold", "--require-confirmation", "--strict", "--output-csv", "--junit",
                                        "--github-action-benchmark", "--google-benchmark", "--github", "--only"}) {
    update->excludes(of_the_comparison);
    history->excludes(of_the_comparison);
  }
  command->footer("Exit status: 0 good, 1 something failed or is missing, 3 regression, 5 nothing compared.");
  command->callback([options, &action] { action = [options] { return analyze(*options); }; });
}

}  // namespace aisp::cli
