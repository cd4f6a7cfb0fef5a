// SPDX-License-Identifier: Apache-2.0
#include "cli/suite_command.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "base/build_info.hpp"
#include "base/digest.hpp"
#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/recorded.hpp"
#include "cli/suite_flags.hpp"
#include "evidence/cost_check.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "pair/all_variants.hpp"
#include "pair/code.hpp"
#include "pair/faults.hpp"
#include "pair/registry.hpp"
#include "report/console.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "run/wire/blank.hpp"
#include "suite/placement.hpp"
#include "suite/records/records.hpp"
#include "suite/selection.hpp"
#include "suite/settings/configuration.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

using base::Error;
using base::Exit;

namespace {

void print_counters(const evidence::SuiteResult& suite, const suite::Configuration& configuration) {
  if (configuration.deep) show(columns(report::cost_table(suite)) + '\n');
  if (configuration.profile != run::ProfileLevel::full) return;
  for (const evidence::PairResult& pair : suite.pairs)
    if (const auto rows = report::counters_table(pair); !rows.empty())
      show(fmt::format("Hardware counters of {}\n{}\n", label_in_run(pair), columns(rows)));
}

// Returns the widths for the pairs that can run; the others have no line of their own.
report::LineWidths widths_of(const suite::Task& task) {
  report::LineWidths widths{.target = 0, .variant = 0};
  for (const suite::Placement& placement : task.placements) {
    if (placement.choices.empty()) continue;
    const run::Request request = suite::request_for(*placement.entry, task.configuration, placement.point);
    widths.target = std::max(widths.target, label_of(run::blank_result(*placement.entry, request)).size());
    widths.variant = std::max(widths.variant, pair::lesson_of(*placement.entry->pair).size());
  }
  return widths;
}

void show_results(const suite::Finished& finished, const suite::Task& task, bool quiet, const base::Painter& paint) {
  print_counters(finished.suite, task.configuration);
  const bool in_full = !quiet && !task.configuration.verify_only;
  if (in_full)
    for (const report::SweepTable& sweep : report::sweep_summaries(finished.suite.pairs))
      show(fmt::format("\nSweep of {}\n{}", sweep.target, columns(sweep.rows)));
  show(report::summary(finished.suite, finished.manifest, paint));
  if (!finished.storage_trouble.empty()) return;
  const std::string where = finished.folder.string();
  show(fmt::format("Reports: {}\n", where));
  if (in_full)
    show(base::on_screen(fmt::format("As one page for a browser: {} report {} --html", program_invocation_name, where)) + '\n');
}

// Says how a run that did not come to its end goes on.
void note_way_on(const suite::Finished& finished, const suite::Configuration& configuration) {
  const std::string on = suite::way_on(configuration, finished.folder);
  if (finished.suite.interrupted) note("aisp: interrupted; " + on);
  if (finished.out_of_time) note("aisp: the suite's time was up; " + on);
}

// Throws base::Error for a run that was good, but counted or ran too little.
void demand_enough(const suite::Finished& finished, const suite::Task& task, const SuiteFlags& flags) {
  if (finished.status != Exit::good) return;
  if (task.configuration.deep && evidence::nothing_counted(finished.suite))
    throw Error{Exit::unfit,
                "verify --deep: the counters of no pair could be read, so no declared cost was compared; the reports say why"};
  Requirements{flags.require}.demand_met(finished.suite, finished.manifest);
  if (!flags.allow_skipped) demand_anything_ran(finished.suite);
}

std::string storage_trouble(const suite::Finished& finished, const suite::Configuration& configuration) {
  if (!finished.kept) return finished.storage_trouble + "; run it again";
  return fmt::format("{}; what was measured is in {}/results.jsonl, {}", finished.storage_trouble, finished.folder.string(),
                     suite::way_on(configuration, finished.folder));
}

// Complains before anything is measured about places that cannot be read or written afterwards.
void demand_places(const suite::Task& task, const SuiteFlags& flags, const std::optional<GateOptions>& gate) {
  if (gate && !task.against) open_expectations(gate->expectations_dir);
  if (!flags.json.empty()) demand_place_for(flags.json);
}

}  // namespace

void refuse_faults(const std::vector<const pair::Entry*>& selected) {
  std::size_t count = 0;
  for (const pair::Entry* entry : selected)
    for (const std::string& fault : pair::faults(*entry)) {
      note(fmt::format("aisp: {}: {}", entry->source, fault));
      ++count;
    }
  if (count > 0)
    throw Error{Exit::usage, fmt::format("{} in how pairs are declared, named above; correct them or select others",
                                         base::plural(count, "fault"))};
}

std::vector<const pair::Entry*> select_cases(std::vector<const pair::Entry*> selected,
                                             const suite::Configuration& configuration) {
  const std::size_t all = selected.size();
  std::vector<const pair::Entry*> with_cases = suite::with_cases(std::move(selected), configuration);
  if (const std::size_t without = all - with_cases.size(); without > 0)
    note(fmt::format("aisp: {} no cases for --sweep and {} left out",
                     without == 1 ? "1 selected pair declares" : fmt::format("{} selected pairs declare", without),
                     without == 1 ? "is" : "are"));
  return with_cases;
}

void settle_shard(suite::Configuration& configuration, const run::World* world) {
  const auto variable = [&](const char* name) -> const char* {
    return world != nullptr && name == std::string_view{"JOB_COMPLETION_INDEX"} ? nullptr : std::getenv(name);
  };
  if (const std::string trouble = suite::settle_shard(configuration, variable); !trouble.empty()) note("aisp: " + trouble);
}

suite::Part take_shard(const std::vector<const pair::Entry*>& selected, const suite::Configuration& configuration,
                       const std::string& expectations_dir) {
  if (configuration.shard.count == 1) return {.shard = {}, .selected = selected};
  suite::Part part = suite::take_part(selected, configuration, read_recorded(expectations_dir));
  const std::string& origin = configuration.origins.find("shard")->second;
  note(fmt::format("aisp: shard {}{}: {} of {}, about {} of {}", to_string(part.shard),
                   origin == "flag" ? "" : fmt::format(" ({})", origin), part.selected.size(),
                   base::plural(selected.size(), "pair"), base::human_duration(static_cast<double>(part.seconds)),
                   base::human_duration(static_cast<double>(part.all_seconds))));
  return part;
}

void note_shard(suite::Task& task, const suite::Part& part, const std::vector<const pair::Entry*>& all) {
  if (part.shard.count == 1) return;
  task.shard = part.shard;
  task.all = all;
}

Exit run_and_report(suite::Task task, suite::RunFolder folder, const SuiteFlags& flags, const std::string& expectations_dir,
                    const std::optional<GateOptions>& gate) {
  demand_places(task, flags, gate);
  const bool json_only = flags.json == "-";
  const base::Painter paint{color_flag(flags.color), STDOUT_FILENO};
  ProgressDisplay display{{.results = !json_only,
                           .live = base::can_redraw(STDERR_FILENO),
                           .quiet = flags.quiet,
                           .paint = paint,
                           .widths = widths_of(task),
                           .left = time_left(task)}};

  if (!json_only && !flags.quiet && !task.configuration.verify_only) note("aisp: " + heading(task));
  const suite::Finished finished = suite::run_suite(task, std::move(folder), display);
  if (!json_only) {
    if (!display.output_trouble().empty()) throw Error{Exit::failed, display.output_trouble()};
    show_results(finished, task, flags.quiet, paint);
  }
  for (const std::string& line : report::not_available(finished.suite)) note("aisp: not available here: " + line);
  if (!flags.json.empty())
    print_to(flags.json, evidence::json_text(evidence::suite_json(finished.suite, finished.manifest), 2) + '\n');
  if (!finished.storage_trouble.empty()) throw Error{finished.status, storage_trouble(finished, task.configuration)};
  if (!expectations_dir.empty()) record_expectations(finished.suite, finished.manifest, expectations_dir);
  note_way_on(finished, task.configuration);
  demand_enough(finished, task, flags);
  if (!gate) return finished.status;
  return run_gate(task, finished, *gate, display, paint, json_only);
}

namespace {

using base::Error;
using base::Exit;

std::string build() {
  const base::BuildInfo& info = base::build_info();
  base::Sha256 code;
  for (const pair::Entry& entry : pair::registry())
    for (const pair::CodeDigest& each : pair::code_of(entry).digests) code.update(each.digest);
  return fmt::format("{} {} {}, code {}", info.version, info.git_commit, info.build_type, code.hex().substr(0, 12));
}

// A container may have a time namespace, and with it a monotonic clock of its own.
std::string clock_here() {
  std::error_code ignored;
  return machine::read_word("/proc/sys/kernel/random/boot_id") + " " +
         std::filesystem::read_symlink("/proc/self/ns/time", ignored).string();
}

run::Process this_process(const suite::Launched& launched, const SuiteFlags& flags,
                          const std::vector<std::string>& command_line) {
  const machine::Machine machine = machine::probe();
  run::Process process{.index = launched.index,
                       .count = launched.count,
                       .host = machine.host.hostname,
                       .clock = clock_here(),
                       .build = build(),
                       .command_line = command_line,
                       .gpus = {},
                       .gpu = {}};
  const std::vector<int> gpus = suite::choose_gpus(machine, make_configuration(flags).gpus);
  for (const int ordinal : gpus) process.gpus.push_back(machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
  // A launcher shows each process its own GPU, or all GPUs of the machine to each.
  const std::size_t own = gpus.size() == 1 ? 0 : static_cast<std::size_t>(launched.local_index);
  if (own < gpus.size()) process.gpu = suite::describe(machine.gpus[static_cast<std::size_t>(gpus[own])]);
  return process;
}

double patience_s(const std::string& text) try {
  return suite::parse_duration(text);
} catch (const std::invalid_argument& error) {
  throw Error{Exit::usage, fmt::format("--rendezvous-timeout '{}' {}", base::one_line(text, 100), error.what())};
}

}  // namespace

Exit run_launched(const SuiteFlags& flags, const std::vector<std::string>& command_line,
                  const std::function<Exit(run::World* world)>& command) {
  const double wait_s = patience_s(flags.rendezvous_timeout);
  const std::optional<suite::Launched> launched =
      suite::find_launcher(flags.rendezvous, [](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  if (!launched) return command(nullptr);
  run::Process own = this_process(*launched, flags, command_line);
  if (launched->index > 0) return suite::serve(launched->address, launched->secret, own, wait_s);
  // Variables of a launcher may stand in the environment of a process that nothing launched, which would wait in silence.
  note(fmt::format("aisp: {} counts {} processes; waiting for the others at {} (--rendezvous none waits for none)",
                   launched->launcher, launched->count, launched->address.substr(launched->address.find(':') + 1)));
  run::World world{launched->address, launched->secret, std::move(own), wait_s};
  const int machines = run::machine_count(world.processes(), launched->count);
  note(fmt::format("aisp: one run of {} processes on {}, started by {}: ranks of pairs run in each, other pairs here",
                   launched->count, base::plural(static_cast<std::size_t>(machines), "machine"), launched->launcher));
  try {
    const Exit status = command(&world);
    world.end(status);
    return status;
  } catch (const Error& error) {
    world.end(error.status());
    throw;
  }
}

}  // namespace aisp::cli
