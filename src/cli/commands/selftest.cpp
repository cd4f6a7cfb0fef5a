// SPDX-License-Identifier: Apache-2.0
#include "suite/selftest.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/system/interrupt.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "evidence/json.hpp"

namespace aisp::cli {
namespace {

using base::Exit;
using suite::SelftestLine;
using suite::SelftestReport;
using suite::SelftestVerdict;

struct SelftestOptions {
  bool json = false;
  bool host = false;
  bool gpu = false;
  std::string color = "auto";
  std::vector<std::string> names;
};

// "8 caught, 1 SLIPPED THROUGH"
std::string verdicts(const suite::SelftestFamily& family, const base::Painter& paint) {
  struct Word {
    SelftestVerdict verdict;
    base::Style style;
    const char* text;
  };
  constexpr std::array<Word, 5> words{{{SelftestVerdict::caught, base::Style::green, "caught"},
                                       {SelftestVerdict::passed, base::Style::green, "passed"},
                                       {SelftestVerdict::slipped, base::Style::red, "SLIPPED THROUGH"},
                                       {SelftestVerdict::false_alarm, base::Style::red, "FALSE ALARM"},
                                       {SelftestVerdict::skipped, base::Style::yellow, "skipped"}}};
  std::vector<std::string> parts;
  for (const Word& word : words)
    if (const std::size_t count = family.count(word.verdict); count > 0)
      parts.push_back(paint(word.style, fmt::format("{} {}", count, word.text)));
  return base::join(parts, ", ");
}

std::string table(const std::vector<suite::SelftestFamily>& families, const base::Painter& paint) {
  std::vector<std::vector<std::string>> rows{{"family", "seconds", "what its pairs do", "verdict"}};
  for (const suite::SelftestFamily& family : families)
    rows.push_back({family.name, fmt::format("{:7.1f}", family.wall_s()), family.about, verdicts(family, paint)});
  return columns(rows);
}

// Describes whatever needs attention, one paragraph each.
std::string faults(const SelftestReport& report, const base::Painter& paint) {
  std::string text;
  for (const SelftestLine& line : report.lines) {
    const bool slipped = line.verdict == SelftestVerdict::slipped;
    if (!slipped && line.verdict != SelftestVerdict::false_alarm) continue;
    text += fmt::format("\n{} {}: {}\n", paint(base::Style::red, slipped ? "SLIPPED THROUGH" : "FALSE ALARM"), line.name,
                        line.reason);
    text += fmt::format("  it {}\n  must be {}\n  was {}\n", line.does, line.expected, line.happened);
  }
  return text;
}

// "skipped, no CUDA device: 54 pairs", a line for each reason.
std::string skips(const SelftestReport& report) {
  std::map<std::string, std::size_t> counts;
  for (const SelftestLine& line : report.lines)
    if (line.verdict == SelftestVerdict::skipped) ++counts[line.reason];
  std::string text;
  for (const auto& [reason, count] : counts) text += fmt::format("skipped, {}: {}\n", reason, base::plural(count, "pair"));
  return text;
}

std::string summary(const SelftestReport& report) {
  const std::size_t caught = report.count(SelftestVerdict::caught), slipped = report.count(SelftestVerdict::slipped);
  std::string text = fmt::format("{} of {} caught", caught, base::plural(caught + slipped, "cheat"));
  const std::size_t honest = report.count(SelftestVerdict::passed), accused = report.count(SelftestVerdict::false_alarm);
  text += fmt::format(", {} of {} passed", honest, base::plural(honest + accused, "honest pair"));
  if (const std::size_t skipped = report.count(SelftestVerdict::skipped); skipped > 0)
    text += fmt::format(", {} skipped", skipped);
  return text + fmt::format(" ({})\n", base::human_duration(report.wall_s));
}

std::string text_of(const SelftestReport& report, const base::Painter& paint) {
  return table(suite::families_of(report), paint) + faults(report, paint) + '\n' + skips(report) + summary(report);
}

nlohmann::json as_json(const SelftestReport& report) {
  nlohmann::json pairs = nlohmann::json::array();
  for (const SelftestLine& line : report.lines)
    pairs.push_back({{"family", line.family},
                     {"name", line.name},
                     {"device", to_string(line.device)},
                     {"does", line.does},
                     {"honest", line.honest},
                     {"expected", line.expected},
                     {"happened", line.happened},
                     {"verdict", suite::to_string(line.verdict)},
                     {"reason", line.reason},
                     {"wall_s", line.wall_s}});
  return {{"schema_version", evidence::schema_version},
          {"good", report.good() && !report.interrupted},
          {"interrupted", report.interrupted},
          {"wall_s", report.wall_s},
          {"pairs", pairs}};
}

Exit run_selftest(const SelftestOptions& options) {
  const base::Painter paint{color_flag(options.color), STDOUT_FILENO};
  base::install_interrupt_handlers();
  const bool all = options.host == options.gpu;
  suite::SelftestTask task{suite::select_selftest(all || options.host, all || options.gpu, options.names), machine::probe()};
  if (!all && options.gpu && task.machine.gpus.empty())
    throw base::Error{Exit::unfit, fmt::format("--gpu: there is no usable GPU here: {}", task.machine.cuda_error)};
  const std::size_t count = task.selected.size();
  const bool live = base::is_terminal(STDERR_FILENO);
  std::size_t done = 0;
  task.on_line = [&](const SelftestLine& line) {
    ++done;
    if (live) note(fmt::format("[{}/{}] {} {}", done, count, line.name, suite::to_string(line.verdict)));
  };
  const SelftestReport report = suite::run_selftest(task);
  if (options.json) print(evidence::json_text(as_json(report), 2) + '\n');
  else show(text_of(report, paint));
  if (report.interrupted) return Exit::interrupted;
  return report.good() ? Exit::good : Exit::failed;
}

}  // namespace

void add_selftest(CLI::App& app, Action& action) {
  auto options = std::make_shared<SelftestOptions>();
  CLI::App* command =
      app.add_subcommand("selftest", "run cheating, broken and honest pairs: every cheat must be caught, no honest pair accused");
  command->add_option("NAME", options->names, "pairs or families [all]")->type_name("");
  command->add_flag("--json", options->json, "as JSON");
  command->add_flag("--host", options->host, "those that need no GPU only");
  command->add_flag("--gpu", options->gpu, "those that run on a GPU only");
  command->add_option("--color", options->color, "auto, always or never [auto]")->type_name("WHEN");
  command->callback([options, &action] { action = [options] { return run_selftest(*options); }; });
}

}  // namespace aisp::cli
