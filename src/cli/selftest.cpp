// SPDX-License-Identifier: Apache-2.0
#include "suite/selftest.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/interrupt.hpp"
#include "base/terminal.hpp"
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

struct Options {
  bool json = false;
  bool host = false;
  bool gpu = false;
  std::string color = "auto";
};

std::string verdict_text(const SelftestLine& line, const base::Painter& paint) {
  switch (line.verdict) {
    case SelftestVerdict::caught: return paint(base::Style::green, "caught");
    case SelftestVerdict::passed: return paint(base::Style::green, "passed");
    case SelftestVerdict::slipped: return paint(base::Style::red, "SLIPPED THROUGH") + ": " + line.reason;
    case SelftestVerdict::false_alarm: return paint(base::Style::red, "FALSE ALARM") + ": " + line.reason;
    case SelftestVerdict::skipped: break;
  }
  return paint(base::Style::yellow, "skipped") + ": " + line.reason;
}

std::string table(const SelftestReport& report, const base::Painter& paint) {
  std::vector<std::vector<std::string>> rows{{"pair", "what it does", "must be", "was", "verdict"}};
  for (const SelftestLine& line : report.lines)
    rows.push_back({line.name, line.does, line.expected, line.happened.empty() ? "-" : line.happened, verdict_text(line, paint)});
  return columns(rows);
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

nlohmann::json as_json(const SelftestReport& report) {
  nlohmann::json pairs = nlohmann::json::array();
  for (const SelftestLine& line : report.lines)
    pairs.push_back({{"name", line.name},
                     {"device", line.device},
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

Exit run_selftest(const Options& options) {
  const base::Painter paint{color_flag(options.color), STDOUT_FILENO};
  base::install_interrupt_handlers();
  const bool all = options.host == options.gpu;
  suite::SelftestTask task{suite::select_selftest(all || options.host, all || options.gpu), machine::probe()};
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
  print(options.json ? evidence::json_text(as_json(report), 2) + '\n' : table(report, paint) + '\n' + summary(report));
  if (report.interrupted) return Exit::interrupted;
  return report.good() ? Exit::good : Exit::failed;
}

}  // namespace

void add_selftest(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("selftest", "run cheating, broken and honest pairs and see that each is told for what it is");
  command->add_flag("--json", options->json, "as JSON");
  command->add_flag("--host", options->host, "those that need no GPU only");
  command->add_flag("--gpu", options->gpu, "those that run on a GPU only");
  command->add_option("--color", options->color, "auto, always or never [auto]")->type_name("WHEN");
  command->callback([options, &action] { action = [options] { return run_selftest(*options); }; });
}

}  // namespace aisp::cli
