// SPDX-License-Identifier: Apache-2.0
#include "suite/task.hpp"

#include <set>
#include <utility>

#include "base/system/places.hpp"
#include "base/text.hpp"
#include "machine/gpu_lock.hpp"
#include "peak/obtain.hpp"

namespace aisp::suite {

Task make_task(std::vector<const pair::Entry*> selected, Configuration configuration, machine::Machine machine,
               std::vector<std::string> command_line, bool resumed, run::World* world) {
  Task task{std::move(selected), std::move(configuration), std::move(machine), std::move(command_line), resumed, {}, {}};
  task.gpus = choose_gpus(task.machine, task.configuration.gpus);
  task.placements = place(task.selected, task.machine, task.gpus, task.configuration);
  task.world = world;
  if (world != nullptr) place_ranks(task.placements, task.machine, world->processes());
  return task;
}

std::vector<int> gpus_in_use(const Task& task) {
  std::set<int> used;
  for (const Placement& placement : task.placements)
    for (const std::vector<int>& choice : placement.choices) used.insert(choice.begin(), choice.end());
  return {used.begin(), used.end()};
}

std::vector<base::FileLock> lock_gpus(const Task& task) {
  // Sorted, so that all commands lock in one order and two of them cannot deadlock.
  std::set<std::string> uuids;
  for (const int ordinal : gpus_in_use(task)) uuids.insert(task.machine.gpus[static_cast<std::size_t>(ordinal)].uuid);
  std::vector<base::FileLock> locks;
  for (const std::string& uuid : uuids) locks.push_back(machine::lock_gpu(uuid, base::join(task.command_line, " ")));
  return locks;
}

void measure_missing_ceilings(const Task& task, const std::function<void(const std::string&)>& note) {
  const std::vector<int> used = gpus_in_use(task);
  peak::ensure(task.machine, used,
               {.purpose = base::join(task.command_line, " "), .locked = used, .note = note, .executable = base::program()});
}

}  // namespace aisp::suite
