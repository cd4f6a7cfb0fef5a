// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/roofline.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/system/files.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"
#include "suite/records/run_folder.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

using base::Error;
using base::Exit;
using report::Roofline;

struct RooflineOptions {
  std::string run;
  std::string artifacts_dir = "artifacts";
  std::string expectations_dir;
  std::vector<std::string> chapters;
  std::string hardware;
  std::string svg;
  bool json = false;
};

std::vector<Roofline> rooflines_of_run(const RooflineOptions& options, const std::vector<std::string>& chapters) {
  const evidence::RunRecord run = evidence::read_run(suite::find_run(options.artifacts_dir, options.run));
  for (const std::string& warning : run.warnings) note("aisp: " + warning);
  const std::vector<evidence::Expectations> all = evidence::as_expectations(run.pairs, run.manifest);
  std::size_t kept = 0, reduced = 0;
  for (const evidence::Expectations& file : all) kept += file.pairs.size();
  for (const evidence::PairResult& pair : run.pairs)
    reduced += evidence::best_variant(pair) != nullptr && (pair.scale != 1 || pair.sizes_set) && pair.sweep_case.empty() ? 1 : 0;
  if (kept < run.pairs.size())
    note(fmt::format("aisp: {} of {} did not pass or {} not timed; left out", run.pairs.size() - kept,
                     base::plural(run.pairs.size(), "pair"), run.pairs.size() - kept == 1 ? "was" : "were"));
  if (reduced > 0) note(fmt::format("aisp: {} did not run at full size", base::plural(reduced, "pair")));
  if (const std::string guessed = guessed_ceilings_text(evidence::summarize(run)); !guessed.empty()) note("aisp: " + guessed);
  std::vector<Roofline> rooflines = report::rooflines(all, {}, chapters);
  report::take_floors(rooflines, run.pairs);
  return rooflines;
}

// Throws for a chapter that does not exist, with the nearest that does.
std::vector<std::string> chapters_of(const std::vector<std::string>& given) {
  std::vector<std::string> chapters;
  if (given.empty()) return chapters;
  const suite::Selection selection = suite::select_here(given);
  for (const pair::Entry* entry : selection.built) chapters.emplace_back(entry->chapter);
  for (const pair::NotBuilt* pair : selection.not_built) chapters.emplace_back(pair->chapter);
  return chapters;
}

report::Digests present_digests() {
  report::Digests digests;
  for (const pair::Entry& entry : pair::registry())
    for (const pair::CodeDigest& code : pair::code_of(entry).digests) digests[entry.target()].emplace_back(code.digest);
  return digests;
}

std::vector<Roofline> gather(const RooflineOptions& options) {
  if (options.run.empty() == options.expectations_dir.empty())
    throw Error{Exit::usage, "name a run, as in aisp roofline latest, or recorded expectations with --expectations-dir"};
  const std::vector<std::string> chapters = chapters_of(options.chapters);
  std::vector<Roofline> all = options.run.empty()
                                  ? report::rooflines(read_recorded(options.expectations_dir), present_digests(), chapters)
                                  : rooflines_of_run(options, chapters);
  std::vector<std::string> names;
  for (const Roofline& roofline : all) names.push_back(roofline.hardware);
  if (!options.hardware.empty()) {
    std::erase_if(all, [&](const Roofline& roofline) { return roofline.hardware != options.hardware; });
    if (all.empty() && !names.empty())
      throw Error{Exit::nothing,
                  fmt::format("nothing is known of hardware '{}'; there is {}", options.hardware, base::join(names, ", "))};
  }
  if (all.empty()) throw Error{Exit::nothing, "no pair that passed and was timed is there"};
  return all;
}

void print_table(const std::vector<Roofline>& all) {
  std::string text;
  for (const Roofline& roofline : all) {
    if (!text.empty()) text += '\n';
    text += base::on_screen(fmt::format("{}: {}", roofline.hardware, roofline.machine)) + '\n';
    text += base::on_screen(fmt::format("ceilings: {}", report::ceilings_text(roofline.ceilings))) + '\n';
    if (const std::string ridges = report::ridges_text(roofline.ceilings); !ridges.empty())
      text += "ridge points: " + ridges + '\n';
    if (const auto summary = report::roofline_summary(roofline); summary.size() > 1) text += columns(summary) + '\n';
    text += columns(report::roofline_rows(roofline));
  }
  show(text);
}

// A picture shows one machine: the one with the most pairs to draw.
void write_picture(const std::vector<Roofline>& all, const std::string& file) {
  const auto most =
      std::max_element(all.begin(), all.end(), [](const Roofline& a, const Roofline& b) { return a.drawn() < b.drawn(); });
  if (most->drawn() == 0)
    throw Error{Exit::nothing,
                "no pair declares FLOPs and bytes of memory, so there is nothing to draw; without --svg there is a table"};
  for (const Roofline& other : all)
    if (&other != &*most && other.drawn() > 0)
      note(fmt::format("aisp: the picture is of {}; --hardware {} draws the other", most->hardware, other.hardware));
  print_to(file, report::roofline_svg(*most));
  if (const std::string left_out = report::left_out_text(*most); !left_out.empty()) note("aisp: " + left_out);
  if (file != "-")
    note(fmt::format("aisp: {} of {} drawn in {}", base::plural(most->drawn(), "pair"), most->hardware, base::one_line(file)));
}

}  // namespace

void add_roofline(CLI::App& app, Action& action) {
  auto options = std::make_shared<RooflineOptions>();
  CLI::App* command = app.add_subcommand("roofline", "show where variants stand below the machine's ceilings");
  command->add_option("RUN", options->run, "a run: its name, its folder, or latest")->type_name("");
  command->add_option("--artifacts-dir", options->artifacts_dir, "where the runs are [artifacts]")->type_name("DIR");
  command->add_option("--expectations-dir", options->expectations_dir, "recorded expectations instead of a run")
      ->type_name("DIR");
  add_repeated(*command, "--chapter", options->chapters, "chNN", "of this chapter only, as in ch07; repeats");
  command->add_option("--hardware", options->hardware, "of this kind of machine only, as in h200 or host")->type_name("KEY");
  CLI::Option* svg =
      command->add_option("--svg", options->svg, "write a picture to this file instead of a table; - is the standard output")
          ->type_name("FILE");
  command->add_flag("--json", options->json, "as JSON")->excludes(svg);
  command->callback([options, &action] {
    action = [options] {
      const std::vector<Roofline> all = gather(*options);
      if (options->json) print(report::roofline_json(all));
      else if (options->svg.empty()) print_table(all);
      else write_picture(all, options->svg);
      return Exit::good;
    };
  });
}

}  // namespace aisp::cli
