// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/html_report.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "report/chapter_table.hpp"
#include "report/quoted_figures.hpp"

namespace aisp::cli {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::Exit;
using report::KnownPair;

struct Options {
  std::string run;
  std::string artifacts_dir = "artifacts";
  std::optional<std::string> html;
  std::string against;
  bool history = false, is_public = false;
  bool chapter_tables = false;
  bool check = false;
  std::string expectations_dir;
  std::string chapters_dir = "chapters";
};

struct Readme {
  std::string chapter;  // empty: that of the source tree, which has figures but no table
  fs::path path;
};

std::vector<Readme> readmes_in(const fs::path& folder) {
  static const std::regex chapter_name{"ch[0-9]{2}"};
  std::error_code error;
  std::vector<Readme> found;
  for (fs::directory_iterator entry{folder, error}; !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    const std::string chapter = entry->path().filename().string();
    std::error_code ignored;
    const fs::path readme = entry->path() / "README.md";
    if (std::regex_match(chapter, chapter_name) && fs::exists(readme, ignored)) found.push_back({chapter, readme});
  }
  if (error)
    throw Error{Exit::usage,
                fmt::format("cannot read the chapters in {}: {}; run in the source tree or name them with --chapters-dir",
                            folder.string(), error.message())};
  std::error_code ignored;
  const fs::path above = (folder / ".." / "README.md").lexically_normal();
  if (fs::exists(above, ignored)) found.push_back({"", above});
  std::sort(found.begin(), found.end(), [](const Readme& a, const Readme& b) { return a.chapter < b.chapter; });
  return found;
}

// A file of expectations outlives the pairs in it.
void note_unknown_pairs(const std::vector<evidence::Expectations>& all, const std::vector<KnownPair>& known) {
  for (const evidence::Expectations& expectations : all)
    for (const auto& [name, pair] : expectations.pairs) {
      const bool found = std::any_of(known.begin(), known.end(), [&, wanted = name](const KnownPair& k) {
        return k.chapter == expectations.chapter && k.name == wanted;
      });
      if (!found)
        note(fmt::format("aisp: {} has {}:{}, which this aisp has not; left out", expectations.hardware, expectations.chapter,
                         name));
    }
}

class Tables {
 public:
  explicit Tables(const Options& options)
      : options_{options}, all_{read_recorded(options.expectations_dir)}, known_{known_pairs()} {
    note_unknown_pairs(all_, known_);
  }

  // False where the README cannot or, with --check, does not hold its table and figures.
  bool update(const Readme& readme) {
    const std::string before = base::read_file(readme.path);
    std::string after;
    try {
      after = report::with_quoted_figures(before, all_, readme.path.string());
      if (!readme.chapter.empty()) after = report::with_table(after, table(readme.chapter), readme.path.string());
    } catch (const Error& error) {
      if (options_.check) show(fmt::format("{}\n", error.what()));
      else note(fmt::format("aisp: error: {}", error.what()));
      return false;
    }
    if (after == before) return true;
    if (options_.check) {
      show(fmt::format("{}: its table or figures are not those of {}; aisp report --chapter-tables writes them\n",
                       readme.path.string(), expectations_to_read(options_.expectations_dir)));
      return false;
    }
    base::write_atomically(readme.path, after);
    show(fmt::format("{}: written\n", readme.path.string()));
    return true;
  }

 private:
  std::string table(const std::string& chapter) const {
    std::vector<KnownPair> pairs;
    for (const KnownPair& pair : known_)
      if (pair.chapter == chapter) pairs.push_back(pair);
    return report::chapter_table(chapter, pairs, all_);
  }

  const Options& options_;
  std::vector<evidence::Expectations> all_;
  std::vector<KnownPair> known_;
};

Exit chapter_tables(const Options& options) {
  const std::vector<Readme> readmes = readmes_in(options.chapters_dir);
  Tables tables{options};
  std::size_t wrong = 0;
  for (const Readme& readme : readmes) wrong += tables.update(readme) ? 0 : 1;
  note(fmt::format("aisp: {} looked at, {} {}", base::plural(readmes.size(), "README"), wrong,
                   options.check ? "differ" : "not written"));
  if (wrong == 0) return Exit::good;
  return options.check ? Exit::failed : Exit::usage;
}

Exit act(const Options& options) {
  if (options.html && options.chapter_tables)
    throw Error{Exit::usage, "--html and --chapter-tables are two reports; give one of them"};
  if (options.html)
    return write_html_report({.artifacts_dir = options.artifacts_dir,
                              .run = options.run,
                              .file = *options.html,
                              .against = options.against,
                              .history = options.history,
                              .is_public = options.is_public});
  if (!options.run.empty() && !options.chapter_tables)
    throw Error{Exit::usage, fmt::format("say which report of {}: aisp report {} --html", options.run, options.run)};
  if (!options.chapter_tables)
    throw Error{Exit::usage, "nothing to report; give RUN --html or --chapter-tables, see aisp report --help"};
  return chapter_tables(options);
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("report", "write a run as one HTML file, or the chapters' measured tables");
  command->add_option("run", options->run, "a run: its name, its folder, or latest")->type_name("RUN");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where runs are written")
      ->type_name("DIR")
      ->capture_default_str();
  CLI::Option* html =
      command
          ->add_option_function<std::vector<std::string>>(
              "--html", [options](const std::vector<std::string>& file) { options->html = file.empty() ? "" : file.front(); },
              "write the run as one file that opens anywhere, offline; RUN/report.html unless a file is given, - is the standard "
              "output")
          ->type_name("[FILE]")
          ->expected(0, 1);
  command->add_option("--against", options->against, "with --html: another run, perhaps of another machine, beside this one")
      ->type_name("RUN")
      ->needs(html);
  command
      ->add_flag("--history", options->history, "with --html: how the pairs did in the runs of this machine in --artifacts-dir")
      ->needs(html);
  command
      ->add_flag("--public", options->is_public,
                 "with --html: without host names, users, paths, environment and serial numbers, to be passed on")
      ->needs(html);
  CLI::Option* tables = command->add_flag(
      "--chapter-tables", options->chapter_tables,
      "rewrite the table of each chapter's README, and the figures that a comment behind them marks as recorded");
  command
      ->add_flag("--check", options->check,
                 "with --chapter-tables: change nothing; exit status 1 and a line for each README that differs")
      ->needs(tables);
  command->add_option("--expectations-dir", options->expectations_dir, expectations_to_read_help)->type_name("DIR");
  command->add_option("--chapters-dir", options->chapters_dir, "folder of the chapters")->type_name("DIR")->capture_default_str();
  command->callback([options, &action] { action = [options] { return act(*options); }; });
}

}  // namespace aisp::cli
