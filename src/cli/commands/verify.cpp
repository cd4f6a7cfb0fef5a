// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/build_info.hpp"
#include "base/system/interrupt.hpp"
#include "base/text.hpp"
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/output.hpp"
#include "cli/suite_command.hpp"
#include "cli/suite_flags.hpp"
#include "suite/selection.hpp"

namespace aisp::cli {
namespace {

using base::Exit;

std::string cuda_version(int number) {
  return number == 0 ? std::string{"none"} : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string gpu_line(const machine::Gpu& gpu) {
  return fmt::format("{}, sm_{}, {}", gpu.name, gpu.sm, base::human_bytes(static_cast<double>(gpu.memory_bytes)));
}

// Describes the installation before any pair runs.
std::string installation(const machine::Machine& machine, std::size_t selected) {
  const std::size_t left_out = pair::not_built().size();
  std::vector<std::vector<std::string>> rows{
      {"aisp", std::string{base::build_info().version}},
      {"built with", fmt::format("CUDA {}, {}", base::build_info().cuda_compiler, base::build_info().cxx_compiler)},
      {"architectures", std::string{base::build_info().cuda_architectures}},
      {"driver", machine.driver_version.empty()
                     ? std::string{"none"}
                     : fmt::format("{}, up to CUDA {}", machine.driver_version, cuda_version(machine.driver_cuda_version))},
      {"pairs", fmt::format("{} registered{}, {} selected", pair::registry().size(),
                            left_out == 0 ? "" : fmt::format(", {} not built", left_out), selected)}};
  if (machine.gpus.empty()) rows.push_back({"GPU", fmt::format("none: {}", machine.cuda_error)});
  for (const machine::Gpu& gpu : machine.gpus) rows.push_back({fmt::format("GPU {}", gpu.ordinal), gpu_line(gpu)});
  return columns(rows) + '\n';
}

struct VerifyOptions : SuiteFlags {
  bool deep = false;
};

Exit verify(const VerifyOptions& flags, const std::vector<std::string>& command_line, run::World* world) {
  color_flag(flags.color);
  suite::Configuration configuration = make_configuration(flags);
  settle_shard(configuration, world);
  const std::vector<std::string> targets = target_list(flags);
  const suite::Selection selection = suite::select_here(targets);
  suite::demand_built(selection, targets);
  std::vector<const pair::Entry*> selected = selection.built;
  refuse_faults(selected);
  selected = select_cases(std::move(selected), configuration);
  suite::check_sizes(selected, configuration);
  const suite::Part part = take_shard(selected, configuration, {});
  note_standing_settings(configuration);
  configuration.verify_only = true;
  configuration.deep = flags.deep;
  base::install_interrupt_handlers();
  suite::Task task = suite::make_task(part.selected, configuration, machine::probe(), command_line, false, world);
  Requirements{flags.require}.demand_possible(task.machine, task.gpus);
  note_shard(task, part, selected);
  // Told once for all shards.
  if (configuration.shard.index == 1) task.not_built = suite::results_of_not_built(selection, targets);
  if (flags.json != "-" && !flags.quiet) show(installation(task.machine, part.selected.size()));
  const std::vector<base::FileLock> locks = suite::lock_gpus(task);
  suite::RunFolder folder =
      suite::RunFolder::create(configuration.artifacts_dir, configuration.run_id, base::join(command_line, " "), "verify_");
  return run_and_report(std::move(task), std::move(folder), flags);
}

}  // namespace

void add_verify(CLI::App& app, Action& action, const std::vector<std::string>& command_line) {
  auto flags = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand("verify", "check the installation: run every variant once and check its results");
  add_suite_flags(
      *command, *flags,
      {"mode", "iterations", "fixed-iterations", "warmup", "budget", "cold-start", "no-alternate", "profile", "percentiles"});
  command->add_flag("--deep", flags->deep,
                    "compare declared costs with hardware counters too: DRAM bytes and FLOPs of every pair on a GPU");
  command->callback([flags, command_line, &action] {
    action = [flags, command_line] {
      return run_launched(*flags, command_line, [&](run::World* world) { return verify(*flags, command_line, world); });
    };
  });
}

}  // namespace aisp::cli
