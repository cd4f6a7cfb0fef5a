// SPDX-License-Identifier: Apache-2.0
// Code shared by `aisp run` and `aisp verify`: from a configuration to reports, printed as the flags say.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/recorded.hpp"
#include "cli/suite_flags.hpp"
#include "machine/machine.hpp"
#include "run/parent/world.hpp"
#include "suite/selection.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

// Names every fault in the declarations of the selected pairs on a line of its own and throws base::Error (usage) when there is
// one: nothing runs beside a pair that cannot be right.
void refuse_faults(const std::vector<const pair::Entry*>& selected);

// Under --sweep those that declare cases, and a note about how many do not; throws base::Error (nothing) where none does.
std::vector<const pair::Entry*> select_cases(std::vector<const pair::Entry*> selected, const suite::Configuration& configuration);

// Takes the shard from the environment if none is set; prints a note for an index without a count. In a run of several processes
// the index of a Job is the process's.
void settle_shard(suite::Configuration& configuration, const run::World* world);
// The part of `selected` that configuration.shard names, which is told; all of it where that is one of one.
suite::Part take_shard(const std::vector<const pair::Entry*>& selected, const suite::Configuration& configuration,
                       const std::string& expectations_dir);
// Puts down what part of `all` the task is.
void note_shard(suite::Task& task, const suite::Part& part, const std::vector<const pair::Entry*>& all);

// With a folder for expectations, what can be expected from now on is recorded there; with a gate the run is
// compared with what was expected.
base::Exit run_and_report(suite::Task task, suite::RunFolder folder, const SuiteFlags& flags,
                          const std::string& expectations_dir = {}, const std::optional<GateOptions>& gate = {});

// Calls `command` in a process by itself, with null, and in process 0 of those that a launcher started, when all have come. The
// others serve process 0 meanwhile, and end with its status.
base::Exit run_launched(const SuiteFlags& flags, const std::vector<std::string>& command_line,
                        const std::function<base::Exit(run::World* world)>& command);

}  // namespace aisp::cli
