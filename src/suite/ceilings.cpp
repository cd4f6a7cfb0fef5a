// SPDX-License-Identifier: Apache-2.0
#include "suite/ceilings.hpp"

#include "base/embedded.hpp"
#include "base/text.hpp"
#include "peak/obtain.hpp"

namespace aisp::suite {

void measure_missing_ceilings(const Task& task, const std::function<void(const std::string&)>& note) {
  const std::vector<int> used = gpus_in_use(task);
  peak::ensure(task.machine, used,
               {.purpose = base::join(task.command_line, " "), .locked = used, .note = note, .executable = base::program()});
}

}  // namespace aisp::suite
