// SPDX-License-Identifier: Apache-2.0
#include "suite/ceilings.hpp"

#include <set>

#include "base/text.hpp"
#include "peak/obtain.hpp"

namespace aisp::suite {

void measure_missing_ceilings(const Task& task, const std::function<void(const std::string&)>& note) {
  std::set<int> used;
  const std::vector<int> gpus = choose_gpus(task.machine, task.configuration.gpus);
  for (const Placement& placement : place(task.selected, task.machine, gpus))
    for (const std::vector<int>& choice : placement.choices) used.insert(choice.begin(), choice.end());
  peak::Options options{.purpose = base::join(task.command_line, " "), .note = note};
  peak::ensure(task.machine, {used.begin(), used.end()}, options);
}

}  // namespace aisp::suite
