// SPDX-License-Identifier: Apache-2.0
// Code shared by `aisp analyze` and `aisp run --gate`, and the latter's confirming rerun.
#pragma once
#include <set>
#include <string>

#include "base/error.hpp"
#include "base/system/terminal.hpp"
#include "evidence/expectations/analysis.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

struct Gate {
  std::string expectations_dir;  // the one that was named; empty: see expectations_to_read()
  double threshold_percent = 5;
  std::string against;  // another executable of aisp to compare with instead of expectations; empty: none
};

// Throws base::Error (usage): a gate without anything to compare with must not be green.
evidence::ExpectationFolder open_expectations(const std::string& named);
// Percent as a fraction; throws base::Error (usage) for what is none.
double threshold_of(double percent);

// The same task for these targets alone, with twice the rounds and the time for them.
suite::Task rerun_of(const suite::Task& task, const std::set<std::string>& targets);

// The rows, and below them what many of them say; nothing without rows.
std::string analysis_table(const evidence::Analysis& analysis, const base::Painter& paint);
// Warnings, and that nothing was compared, on the standard error.
void note_warnings(const evidence::Analysis& analysis);

// Compares a finished run with what was expected, reruns what regressed with twice the rounds into a folder inside the run's, and
// reports only what both show. The table goes to the standard error when `json_only`. Gives `finished.status` where that is not
// good.
base::Exit run_gate(const suite::Task& task, const suite::Finished& finished, const Gate& gate, suite::Watcher& watcher,
                    const base::Painter& paint, bool json_only);

// The end of `aisp run --gate --against OTHER`: compares what both executables measured in turns, measures again what the new one
// seems to have lost, and gives 3 where that shows it too. Gives `finished.status` where that is not good.
base::Exit run_against(const suite::Task& task, const suite::Finished& finished, const Gate& gate, suite::Watcher& watcher,
                       const base::Painter& paint, bool json_only);

}  // namespace aisp::cli
