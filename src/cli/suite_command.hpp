// SPDX-License-Identifier: Apache-2.0
// What `aisp run` and `aisp verify` share: from a configuration to reports, printed as the flags say.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/regression_gate.hpp"
#include "cli/suite_flags.hpp"
#include "machine/machine.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

// Names every fault in the declarations of the selected pairs on a line of its own and throws base::Error (usage) when there is
// one: nothing runs beside a pair that cannot be right.
void refuse_faults(const std::vector<const pair::Entry*>& selected);

// Under --sweep those that declare cases, and a note about how many do not; throws base::Error (nothing) where none does.
std::vector<const pair::Entry*> select_cases(std::vector<const pair::Entry*> selected, const suite::Configuration& configuration);

// With a folder for expectations, what can be expected from now on is recorded there; with a gate the run is
// compared with what was expected.
base::Exit run_and_report(suite::Task task, suite::RunFolder folder, const SuiteFlags& flags,
                          const std::string& expectations_dir = {}, const std::optional<Gate>& gate = {});

}  // namespace aisp::cli
