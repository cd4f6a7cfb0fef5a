// SPDX-License-Identifier: Apache-2.0
// Code shared by commands that work from recorded expectations.
#pragma once
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/system/terminal.hpp"
#include "evidence/expectations/analysis.hpp"
#include "evidence/expectations/expectations.hpp"
#include "evidence/manifest.hpp"
#include "evidence/result.hpp"
#include "evidence/run_record.hpp"
#include "suite/suite.hpp"

namespace aisp::cli {

// For the help of --expectations-dir, in commands that read.
inline constexpr const char* expectations_to_read_help =
    "folder of the recorded expectations [expectations, else those installed with aisp]";

// The folder to read: the one that was named; else `expectations` here, which is a tree's or was recorded here; else what was
// installed with this executable.
std::string expectations_to_read(const std::string& named);
// The folder to record into: the one that was named, else `expectations` here.
std::string expectations_to_record(const std::string& named);

// Every expectation in the folder to read. One that was not named may be missing, as nothing may be recorded yet; throws
// base::Error (usage) when a named one is.
std::vector<evidence::Expectations> read_recorded(const std::string& named);

// A run that was found and not named, with its confirmations; one that cannot be read is left out and named in a warning.
std::vector<evidence::RunRecord> read_found(const std::filesystem::path& folder);

// Records what a run measured below `folder`, and says on stderr what of it was not fit to be expected and why.
void record_expectations(const evidence::SuiteResult& suite, const evidence::Manifest& manifest, const std::string& folder);
// The same of several runs, one after the other.
void record_expectations(std::span<const evidence::RunRecord> runs, const std::string& folder);

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
