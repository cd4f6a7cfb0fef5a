// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/system/interrupt.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/recorded.hpp"
#include "cli/suite_command.hpp"
#include "cli/suite_flags.hpp"
#include "suite/records/records.hpp"
#include "suite/selection.hpp"
#include "suite/task.hpp"

namespace aisp::cli {
namespace {

using base::Exit;
using suite::Configuration;
using suite::Placement;

struct RunOptions : SuiteFlags {
  std::string resume;
  bool list = false;
  bool dry_run = false;
  bool update_expectations = false;
  bool check_expectations = false;
  GateOptions gate;
};

std::string where(const Placement& placement, std::size_t gpus) {
  if (placement.choices.empty()) return fmt::format("skipped: {}", placement.obstacle);
  const std::string alone = placement.alone && gpus > 1 ? ", alone" : "";
  if (placement.choices.front().empty()) return "on the host" + alone;
  return fmt::format("GPU {}{}", fmt::join(placement.choices.front(), ", "), alone);
}

void print_plan(const suite::Task& task) {
  std::vector<std::vector<std::string>> rows;
  for (const Placement& placement : task.placements) {
    const run::Request request = suite::request_for(*placement.entry, task.configuration, placement.point);
    rows.push_back({placement.label(), fmt::format("{} rounds after {}", request.iterations, request.warmup),
                    where(placement, task.gpus.size())});
  }
  for (const evidence::PairResult& left_out : task.not_built) rows.push_back({left_out.target, "", left_out.reason});
  show(columns(rows));
}

std::optional<run::Counterpart> other_executable(const RunOptions& options) {
  if (options.gate.against.empty()) return std::nullopt;
  return run::shake_hands(options.gate.against);
}

Exit run(const RunOptions& options, const std::vector<std::string>& command_line, run::World* world) {
  color_flag(options.color);
  threshold_of(options.gate.threshold_percent);
  std::vector<std::string> targets = target_list(options);
  Configuration earlier;
  if (!options.resume.empty()) {
    const std::string artifacts = make_configuration(options).artifacts_dir;
    suite::Resumed resumed = suite::read_resumed(suite::find_run(artifacts, options.resume), targets);
    earlier = std::move(resumed.configuration);
    targets = std::move(resumed.targets);
  }
  Configuration configuration = make_configuration(options, earlier);
  // A run that is continued stays the part that it was.
  if (options.resume.empty()) settle_shard(configuration, world);
  const suite::Selection selection = suite::select_here(targets);
  if (!options.list) suite::demand_built(selection, targets);
  std::vector<const pair::Entry*> selected = selection.built;
  refuse_faults(selected);
  if (!selected.empty()) selected = select_cases(std::move(selected), configuration);
  suite::check_sizes(selected, configuration);
  const suite::Part part = take_shard(selected, configuration, options.gate.expectations_dir);
  // Pairs that are not built are told once for all shards.
  const suite::Selection told{part.selected,
                              configuration.shard.index == 1 ? selection.not_built : decltype(selection.not_built){}};
  if (options.list) {
    print_targets(told, options.json);
    return Exit::good;
  }
  if (configuration.in_process && !options.gate.against.empty())
    throw base::Error{Exit::usage, "--against measures in child processes of both executables; leave --in-process out"};
  if (world != nullptr && !options.gate.against.empty())
    throw base::Error{base::Exit::usage, "--against measures in one process; add --rendezvous none, or leave the launcher out"};
  note_standing_settings(configuration);
  base::install_interrupt_handlers();
  // Complains of GPUs that do not exist before a folder is made.
  suite::Task task =
      suite::make_task(part.selected, configuration, machine::probe(), command_line, !options.resume.empty(), world);
  Requirements{options.require}.demand_possible(task.machine, task.gpus);
  task.against = other_executable(options);
  task.wanted = targets;
  note_shard(task, part, selected);
  task.not_built = suite::results_of_not_built(told, targets);
  if (options.dry_run) {
    if (task.resumed) suite::demand_continuable(suite::find_run(configuration.artifacts_dir, options.resume), task);
    print_plan(task);
    return Exit::good;
  }
  const std::vector<base::FileLock> locks = suite::lock_gpus(task);
  suite::measure_missing_ceilings(task, [](const std::string& line) { note("aisp: " + line); });
  const std::string purpose = base::join(command_line, " ");
  suite::RunFolder folder = task.resumed ? suite::RunFolder::reopen(configuration.artifacts_dir, options.resume, purpose)
                                         : suite::RunFolder::create(configuration.artifacts_dir, configuration.run_id, purpose);
  return run_and_report(std::move(task), std::move(folder), options,
                        options.update_expectations ? expectations_to_record(options.gate.expectations_dir) : std::string{},
                        options.check_expectations ? std::optional{options.gate} : std::nullopt);
}

}  // namespace

void add_run(CLI::App& app, Action& action, const std::vector<std::string>& command_line) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "measure pairs, check their results and write reports");
  add_suite_flags(*command, *options);
  command->add_option("--resume", options->resume, "continue this run: its name, its folder, or latest")
      ->type_name("RUN")
      ->excludes("--run-id");
  CLI::Option* list = command->add_flag("--list", options->list, "list the selected pairs and stop");
  command->add_flag("--update-expectations", options->update_expectations,
                    "save passing results as the reference for this hardware");
  command->add_option("--expectations-dir", options->gate.expectations_dir, expectations_to_read_help)->type_name("DIR");
  CLI::Option* gate =
      command
          ->add_flag("--gate", options->check_expectations,
                     "compare with expectations at the end, measure again what regressed, exit 3 when that confirms it, 5 when "
                     "nothing could be compared")
          ->excludes("--update-expectations");
  add_number(*command, "--threshold", options->gate.threshold_percent,
             "for --gate: loss of speedup that is a regression, in percent [5]")
      ->type_name("PERCENT")
      ->needs(gate);
  command
      ->add_option(
          "--against", options->gate.against,
          "with --gate: another executable of aisp, as that of the commit before; both measure each pair in turns, exit 3 "
          "where this one is slower, and no expectations are needed")
      ->needs(gate)
      ->type_name("AISP");
  command->add_flag("--dry-run", options->dry_run, "say what would run where and stop; no JSON")
      ->excludes(list)
      ->excludes("--json");
  command->callback([options, command_line, &action] {
    action = [options, command_line] {
      return run_launched(*options, command_line, [&](run::World* world) { return run(*options, command_line, world); });
    };
  });
}

}  // namespace aisp::cli
