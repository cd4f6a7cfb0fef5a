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

struct GateOptions {
  std::string expectations_dir;  // the one that was named; empty: see expectations_to_read()
  double threshold_percent = 5;
  std::string against;  // another executable of aisp to compare with instead of expectations; empty: none
};

// Throws base::Error (usage): a gate without anything to compare with must not be green.
evidence::ExpectationFolder open_expectations(const std::string& named);
// Percent as a fraction; throws base::Error (usage) for what is none.
double threshold_of(double percent);

// The rows, and below them what many of them say; nothing without rows.
std::string analysis_table(const evidence::Analysis& analysis, const base::Painter& paint);
// Warnings, and that nothing was compared, on the standard error.
void note_warnings(const evidence::Analysis& analysis);

// Compares a finished run with recorded expectations, or with what another executable measured in turns with this one; measures
// pairs that seem slower again, into a folder inside the run's, and reports only what both show. The table goes to the standard
// error if `json_only`. Returns `finished.status` if that is not good.
base::Exit run_gate(const suite::Task& task, const suite::Finished& finished, const GateOptions& gate, suite::Watcher& watcher,
                    const base::Painter& paint, bool json_only);

}  // namespace aisp::cli
