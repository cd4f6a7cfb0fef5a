// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/command.hpp"
#include "cli/commands/pages/chapter_pages.hpp"
#include "cli/commands/pages/html_report.hpp"
#include "cli/recorded.hpp"

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
  ChapterPages pages;
};

// `--html latest` leaves no RUN: what stands behind --html is it, as no report is of a file alone.
HtmlOptions html_options(const ReportOptions& options) {
  const bool run_behind = options.run.empty();
  return {.artifacts_dir = options.artifacts_dir,
          .run = run_behind ? *options.html : options.run,
          .file = run_behind ? "" : *options.html,
          .against = options.against,
          .history = options.history,
          .is_public = options.is_public,
          .is_brief = options.is_brief};
}

Exit write_report(const ReportOptions& options) {
  const bool pages = options.pages.tables || options.pages.pictures;
  if (options.html && pages)
    throw Error{Exit::usage, "--html is of a run, --chapter-tables and --pictures are of the chapters; ask for one of them"};
  if (options.pages.check && !pages)
    throw Error{Exit::usage, "--check is of --chapter-tables or --pictures; give one of them, or both"};
  if (options.html) return write_html_report(html_options(options));
  if (pages) return write_chapter_pages(options.pages);
  if (!options.run.empty())
    throw Error{Exit::usage, fmt::format("say which report of {}: aisp report {} --html", options.run, options.run)};
  throw Error{Exit::usage, "nothing to report; give RUN --html, --chapter-tables or --pictures, see aisp report --help"};
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

void add_pages(CLI::App& command, ChapterPages& pages) {
  command.add_flag("--chapter-tables", pages.tables,
                   "rewrite the table of each chapter's README, and the figures that a comment behind them marks as recorded");
  command.add_flag("--pictures", pages.pictures,
                   "draw the pictures that the chapters' READMEs link to, as the comment behind each link says");
  command.add_flag("--check", pages.check,
                   "with --chapter-tables or --pictures: change nothing; exit status 1 and a line for each file that differs");
  command.add_option("--expectations-dir", pages.expectations_dir, expectations_to_read_help)->type_name("DIR");
  command.add_option("--chapters-dir", pages.chapters_dir, "folder of the chapters [chapters]")->type_name("DIR");
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand("report", "write a run as one HTML file, or the chapters' measured tables and pictures");
  command->add_option("RUN", options->run, "a run: its name, its folder, or latest")->type_name("");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  add_html(*command, options);
  add_pages(*command, options->pages);
  command->callback([options, &action] { action = [options] { return write_report(*options); }; });
}

}  // namespace aisp::cli
