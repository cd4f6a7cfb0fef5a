// SPDX-License-Identifier: Apache-2.0
#include "cli/launched.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "base/build_info.hpp"
#include "base/digest.hpp"
#include "base/text.hpp"
#include "cli/output.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "pair/code.hpp"
#include "pair/registry.hpp"
#include "suite/placement.hpp"
#include "suite/records/records.hpp"
#include "suite/settings/configuration.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {
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
