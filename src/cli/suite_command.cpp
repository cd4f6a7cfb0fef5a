// SPDX-License-Identifier: Apache-2.0
#include "cli/suite_command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/against.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/recording.hpp"
#include "evidence/cost_check.hpp"
#include "evidence/json.hpp"
#include "report/console.hpp"
#include "report/counters.hpp"
#include "report/sweep.hpp"

namespace aisp::cli {

using base::Error;
using base::Exit;

namespace {

void print_counters(const evidence::SuiteResult& suite, const suite::Configuration& configuration) {
  if (configuration.deep) print(columns(report::cost_table(suite)) + '\n');
  if (configuration.profile != run::ProfileLevel::full) return;
  for (const evidence::PairResult& pair : suite.pairs)
    if (const auto rows = report::counters_table(pair); !rows.empty())
      print(fmt::format("Hardware counters of {}\n{}\n", label_in_run(pair), columns(rows)));
}

}  // namespace

Exit run_and_report(suite::Task task, suite::RunFolder folder, const SuiteFlags& flags, const std::string& expectations_dir,
                    const std::optional<Gate>& gate) {
  if (gate && !task.against) open_expectations(gate->expectations_dir);  // complains before anything is measured
  const bool json_only = flags.json == "-";
  const base::Painter paint{color_flag(flags.color), STDOUT_FILENO};
  ProgressDisplay display{
      {.results = !json_only, .live = base::is_terminal(STDERR_FILENO), .quiet = flags.quiet, .paint = paint}};

  const suite::Finished finished = suite::run_suite(task, std::move(folder), display);
  const std::string where = finished.folder.string();
  if (!flags.json.empty()) print_to(flags.json, evidence::json_text(finished.suite, 2) + '\n');
  if (!json_only) {
    if (!display.output_trouble().empty()) throw Error{Exit::failed, display.output_trouble()};
    print_counters(finished.suite, task.configuration);
    const bool with_sweeps = !flags.quiet && !task.configuration.verify_only;
    for (const report::SweepTable& sweep : report::sweep_tables(finished.suite.pairs))
      if (with_sweeps) print(fmt::format("\nSweep of {}\n{}", sweep.target, columns(sweep.rows)));
    print(report::summary(finished.suite, paint));
    if (finished.storage_trouble.empty()) print(fmt::format("Reports: {}\n", where));
  }
  for (const std::string& line : report::not_available(finished.suite)) note("aisp: not available here: " + line);
  if (!finished.storage_trouble.empty())
    throw Error{finished.status, fmt::format("{}; what was measured is in {}/results.jsonl, continue with --resume {}",
                                             finished.storage_trouble, where, where)};
  if (!expectations_dir.empty()) record_expectations(finished.suite, finished.manifest, expectations_dir);
  if (finished.suite.interrupted) note(fmt::format("aisp: interrupted; continue with --resume {}", where));
  if (finished.out_of_time) note(fmt::format("aisp: the suite's time was up; continue with --resume {}", where));
  if (task.configuration.deep && finished.status == Exit::good && evidence::nothing_counted(finished.suite))
    throw Error{Exit::unfit,
                "verify --deep: the counters of no pair could be read, so no declared cost was compared; the reports say why"};
  if (!gate) return finished.status;
  return (task.against ? run_against : run_gate)(task, finished, *gate, display, paint, json_only);
}

}  // namespace aisp::cli
