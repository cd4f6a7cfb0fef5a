// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cli/regression_gate.hpp"

namespace aisp::cli {

// The end of `aisp run --gate --against OTHER`: compares what both executables measured in turns, measures again what the new one
// seems to have lost, and gives 3 where that shows it too. Gives `finished.status` where that is not good.
base::Exit run_against(const suite::Task& task, const suite::Finished& finished, const Gate& gate, suite::Watcher& watcher,
                       const base::Painter& paint, bool json_only);

}  // namespace aisp::cli
