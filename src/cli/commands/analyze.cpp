// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "evidence/comparison/history.hpp"
#include "report/analysis/analysis.hpp"
#include "suite/records/run_folder.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;
using evidence::Finding;
using evidence::RunRecord;

struct OutputFile {
  const char *flag, *help;
  std::string (*text)(const evidence::Analysis& analysis);  // null: it holds times alone, which need no analysis
};
constexpr const char *json_flag = "--json", *google_flag = "--google-benchmark";
constexpr OutputFile output_files[] = {
    {"--output-csv", "one row a variant, as docs/report-formats.md describes; without FILE reports/proof_of_benefit.csv",
     report::proof_of_benefit_csv},
    {"--junit", "JUnit XML", report::junit_xml},
    {json_flag, "the analysis as JSON; '-' is the standard output, for every FILE here", report::analysis_json},
    {"--github-action-benchmark", "speedups for that action, tool customBiggerIsBetter", report::github_action_benchmark},
    {google_flag, "times as Google Benchmark's JSON, which needs no expectations", nullptr}};

struct AnalyzeOptions {
  std::vector<std::string> runs, only;
  std::string artifacts_dir = "artifacts";
  GateOptions gate;
  bool strict = false, require_confirmation = false;
  bool history = false, all = false;
  bool update_expectations = false;
  bool github = false;
  std::map<std::string, std::string> files;  // places of outputs, by flag
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
  const std::string& json = options.files.at(json_flag);
  if (!json.empty()) print_to(json, report::history_json(history));
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
  if (json != "-") show(columns(report::history_rows(history, options.all)) + report::history_notes(history));
  return Exit::good;
}

void write_files(const AnalyzeOptions& options, const evidence::Analysis& analysis) {
  for (const OutputFile& file : output_files)
    if (const std::string& place = options.files.at(file.flag); !place.empty() && file.text != nullptr)
      print_to(place, file.text(analysis));
}

// Whether a file goes to the standard output, where nothing else may be then.
bool uses_standard_output(const AnalyzeOptions& options) {
  return std::ranges::any_of(options.files, [](const auto& file) { return file.second == "-"; });
}

// Refuses to write two documents to one file or stream.
void demand_different_places(const AnalyzeOptions& options) {
  std::map<std::string, const char*> flags;
  for (const OutputFile& file : output_files) {
    const std::string& place = options.files.at(file.flag);
    if (place.empty()) continue;
    if (const auto [earlier, added] = flags.emplace(place, file.flag); !added)
      throw Error{Exit::usage, fmt::format("{} and {} both write to {}; give one of them another place", earlier->second,
                                           file.flag, place == "-" ? "the standard output" : place)};
  }
}

// Whether only times are wanted, which need no expectations.
bool wants_times_alone(const AnalyzeOptions& options) {
  const auto holds_times = [](const auto& file) { return file.second.empty() != (file.first == google_flag); };
  std::error_code ignored;
  return std::ranges::all_of(options.files, holds_times) && options.gate.expectations_dir.empty() && !options.github &&
         !fs::is_directory(expectations_to_read(options.gate.expectations_dir), ignored);
}

Finding finding_of(const std::string& word) {
  if (const std::optional<Finding> finding = base::find_word<Finding>(word)) return *finding;
  throw Error{Exit::usage, fmt::format("--only '{}' is no finding; there are {}", base::one_line(word, 40),
                                       fmt::join(base::all_words<Finding>(), ", "))};
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
  if (const std::string& place = options.files.at(google_flag); !place.empty()) print_to(place, report::google_benchmark(runs));
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
  for (const OutputFile& file : output_files)
    command.add_option(file.flag, options.files[file.flag], file.help)->type_name("FILE")->group("Output");
  command.get_option("--output-csv")->expected(0, 1)->default_str("reports/proof_of_benefit.csv");
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
