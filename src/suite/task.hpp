// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/system/lock.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "machine/machine.hpp"
#include "pair/registry.hpp"
#include "run/parent/world.hpp"
#include "run/wire/handshake.hpp"
#include "suite/placement.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

// The pairs that a command is to run, and where. Comes from make_task().
struct Task {
  std::vector<const pair::Entry*> selected;
  Configuration configuration;
  machine::Machine machine;
  std::vector<std::string> command_line;
  bool resumed = false;                           // take over what the folder's results.jsonl holds
  std::vector<int> gpus;                          // ordinals of the GPUs that may be used
  std::vector<Placement> placements;              // placements of the selected pairs
  std::optional<run::Counterpart> against{};      // another executable, whose pairs take turns with these
  std::optional<evidence::Shard> shard{};         // the shard that `selected` is
  std::vector<const pair::Entry*> all{};          // for a shard: the selection of all shards together
  std::vector<std::string> wanted{};              // targets that the user named; empty: all
  std::vector<evidence::PairResult> not_built{};  // pairs that the user named and that are not built, for the reports
  run::World* world = nullptr;                    // the processes that a launcher started, which run the ranks of pairs
};

// Makes a task. Throws base::Error: usage or unfit for GPUs that the configuration names and that do not exist.
Task make_task(std::vector<const pair::Entry*> selected, Configuration configuration, machine::Machine machine,
               std::vector<std::string> command_line, bool resumed = false, run::World* world = nullptr);

// Returns the ordinals of the GPUs that some pair of the task may run on.
std::vector<int> gpus_in_use(const Task& task);
// Locks the task's GPUs for as long as anything of it runs. Throws base::Error (unfit) that names the holder of one that is
// taken.
std::vector<base::FileLock> lock_gpus(const Task& task);

// Measures missing ceilings of the GPUs that the task will use, so that its results are in percent of this machine's own. The
// caller holds lock_gpus(task).
void measure_missing_ceilings(const Task& task, const std::function<void(const std::string&)>& note);

}  // namespace aisp::suite
