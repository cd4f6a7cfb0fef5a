// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "evidence/comparison/history.hpp"
#include "evidence/expectations/expectations.hpp"
#include "machine/nvml.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"
#include "report/html/html.hpp"
#include "report/public_run.hpp"
#include "suite/records/run_folder.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;

struct ReportOptions {
  std::string run;
  std::string artifacts_dir = "artifacts";
  std::optional<std::string> html;
  std::string against;
  bool history = false, is_public = false, is_brief = false;
};

// Only code that was measured is shown beside its measurement.
report::PairSource source_of(const evidence::PairResult& pair) {
  for (const pair::Entry& entry : pair::registry()) {
    if (entry.target() != pair.target) continue;
    const pair::Code code = pair::code_of(entry);
    if (!pair::has_digest(code, pair.source_digest))
      return {.missing =
                  "This aisp holds another version of the pair's code than the one that was measured, so none is shown; "
                  "aisp report of the commit in the manifest shows it."};
    report::PairSource source;
    for (const pair::SourceFile& file : code.files) {
      pair::SourceFile::Content content = file.content();
      source.add({std::string{file.path}, std::move(content.text)}, content.functions);
    }
    return source;
  }
  for (const pair::NotBuilt& left_out : pair::not_built())
    if (left_out.target() == pair.target)
      return {.missing = fmt::format("This aisp was built without this pair, so its code is not shown; {} builds it.",
                                     suite::build_command({pair.target}))};
  return {.missing = "This aisp does not have this pair, so its code is not shown."};
}

std::size_t without_source(const report::HtmlReport& report) {
  std::size_t count = 0;
  for (const auto& [target, source] : report.sources) count += source.missing.empty() ? 0 : 1;
  return count;
}

std::vector<report::Roofline> rooflines_by_chapter(const evidence::RunRecord& run) {
  const std::vector<evidence::Expectations> all = evidence::as_expectations(run.pairs, run.manifest);
  std::set<std::string> chapters;
  for (const evidence::PairResult& pair : run.pairs) chapters.insert(pair.chapter);
  std::vector<report::Roofline> rooflines;
  for (const std::string& chapter : chapters)
    for (report::Roofline& roofline : report::rooflines(all, {}, {chapter})) rooflines.push_back(std::move(roofline));
  report::take_floors(rooflines, run.pairs);
  return rooflines;
}

evidence::RunRecord with_name(evidence::RunRecord run) {
  if (run.manifest.run_id.empty()) run.manifest.run_id = run.folder.filename().string();
  return run;
}

evidence::RunRecord named_run(const std::filesystem::path& folder) { return with_name(evidence::read_run(folder)); }

// Returns the history of this run's pairs on its machines.
std::vector<evidence::Series> history_of(const evidence::RunRecord& run, const std::string& artifacts) {
  std::vector<evidence::RunRecord> runs;
  for (const std::filesystem::path& folder : evidence::timed_runs(artifacts))
    for (evidence::RunRecord& other : read_found(folder))
      if (!other.confirmation) runs.push_back(with_name(std::move(other)));
  std::vector<evidence::Series> history = evidence::history(runs);
  std::erase_if(history, [&](const evidence::Series& series) {
    return std::none_of(run.pairs.begin(), run.pairs.end(), [&](const auto& pair) {
      return pair.target == series.target &&
             evidence::machine_in_history(pair, evidence::manifest_of(pair, run.manifest)) == series.machine;
    });
  });
  return history;
}

std::vector<std::string> user_names() {
  std::vector<std::string> names;
  for (const char* variable : {"USER", "LOGNAME", "SUDO_USER"})
    if (const char* name = std::getenv(variable); name != nullptr && std::string{name} != "root") names.emplace_back(name);
  if (const char* home = std::getenv("HOME"); home != nullptr)
    if (const std::string name = std::filesystem::path{home}.filename().string(); name != "root") names.push_back(name);
  return names;
}

void make_public(report::HtmlReport& report) {
  const std::vector<std::string> users = user_names();
  const report::Redactor redact = report::redactor_for(report.run, users);
  report.run = report::public_copy(report.run, redact);
  if (report.against) report.against = report::public_copy(*report.against, report::redactor_for(*report.against, users));
  for (report::Roofline& roofline : report.rooflines) roofline.machine = redact(roofline.machine);
  report.history = report::public_copy(std::move(report.history), redact);
  report.is_public = true;
}

report::HtmlReport html_of(const std::filesystem::path& folder, const ReportOptions& options) {
  report::HtmlReport report;
  report.run = named_run(folder);
  for (const std::string& warning : report.run.warnings) note("aisp: " + warning);
  report.is_brief = options.is_brief;
  if (!options.is_brief) {
    report.rooflines = rooflines_by_chapter(report.run);
    for (const evidence::PairResult& pair : report.run.pairs) report.sources[pair.target] = source_of(pair);
  }
  report.throttle_text = machine::throttle_text;
  if (!options.against.empty()) report.against = named_run(suite::find_run(options.artifacts_dir, options.against));
  if (options.history) report.history = history_of(report.run, options.artifacts_dir);
  if (options.is_public) make_public(report);
  return report;
}

// In `--html latest` the word after --html is the run, since no report is of a file alone.
Exit write_html_report(const ReportOptions& options) {
  const bool is_run = options.run.empty();
  const std::string run = is_run ? *options.html : options.run, file = is_run ? "" : *options.html;
  if (run.empty()) throw Error{Exit::usage, "name a run, as in aisp report latest --html"};
  const std::filesystem::path folder = suite::find_run(options.artifacts_dir, run);
  const report::HtmlReport report = html_of(folder, options);
  const std::string where = file.empty() ? (folder / "report.html").string() : file;
  if (file.empty()) base::write_atomically(where, report::html_report(report));
  else print_to(where, report::html_report(report));
  if (const std::size_t missing = without_source(report); missing > 0)
    note(fmt::format("aisp: {} measured with other code than this aisp holds; shown without source",
                     missing == 1 ? "1 pair was" : fmt::format("{} pairs were", missing)));
  if (where != "-") note(fmt::format("aisp: {} in {}", base::plural(report.run.pairs.size(), "pair"), base::one_line(where)));
  return Exit::good;
}

Exit write_report(const ReportOptions& options) {
  if (options.html) return write_html_report(options);
  if (!options.run.empty())
    throw Error{Exit::usage, fmt::format("say which report of {}: aisp report {} --html", options.run, options.run)};
  throw Error{Exit::usage, "nothing to report; give RUN --html, see aisp report --help"};
}

void add_html(CLI::App& command, const std::shared_ptr<ReportOptions>& options) {
  CLI::Option* html =
      command
          .add_option_function<std::vector<std::string>>(
              "--html", [options](const std::vector<std::string>& file) { options->html = file.empty() ? "" : file.front(); },
              "write the run as one file that opens anywhere, offline; RUN/report.html unless a file is given, - is the standard "
              "output")
          ->type_name("[FILE]")
          ->expected(0, 1);
  command.add_option("--against", options->against, "with --html: another run, perhaps of another machine, beside this one")
      ->type_name("RUN")
      ->needs(html);
  command
      .add_flag("--history", options->history, "with --html: how the pairs did in the runs of this machine in --artifacts-dir")
      ->needs(html);
  command
      .add_flag(
          "--public", options->is_public,
          "with --html: to be passed on, without paths, IP addresses, serial numbers, environment, host names and users, also in "
          "the run's name; names of one or two letters stay, and those of other hosts and users in texts")
      ->needs(html);
  command.add_flag("--summary", options->is_brief, "with --html: small enough for mail, without source, samples and rooflines")
      ->needs(html);
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand("report", "write a run as one HTML file");
  command->add_option("RUN", options->run, "a run: its name, its folder, or latest")->type_name("");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  add_html(*command, options);
  command->callback([options, &action] { action = [options] { return write_report(*options); }; });
}

}  // namespace aisp::cli
