// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>

#include "suite/task.hpp"

namespace aisp::suite {

// Measures the ceilings of the GPUs that the task will use where nobody has yet, so that its results say percent of this
// machine's own. The caller holds lock_gpus(task).
void measure_missing_ceilings(const Task& task, const std::function<void(const std::string&)>& note);

}  // namespace aisp::suite
