// SPDX-License-Identifier: Apache-2.0
// Nsight Compute and Nsight Systems, started around one execution of a variant where they are installed.
#pragma once
#include <aisp/check.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/profile/profile.hpp"

namespace aisp::profile {

// Names of hardware metrics, and what they mean in a result.

// Deep: DRAM traffic and FLOPs, which verification needs, in few passes. Full: all that a result holds.
enum class MetricSet { deep, full };

// For all chips that are known; one that lacks some of them gives the others.
std::vector<std::string> metric_names(MetricSet set);

// Makes counters of the values read under these names. Units are those of the metrics: bytes, nanoseconds, percent, counts.
evidence::Counters counters_from(const std::map<std::string, double>& values);

// The driver's error ERR_NVGPUCTRPERM or CUPTI_ERROR_INSUFFICIENT_PRIVILEGES in words, and the way round it.
inline constexpr const char* counters_refused =
    "the driver lets only root read hardware counters (NVreg_RestrictProfilingToAdminUsers=0 changes that)";
struct CountersRefused : Unsupported {
  CountersRefused() : Unsupported{counters_refused} {}
};

struct ToolRun {
  std::vector<std::string> program;   // executes the variant between cudaProfilerStart and cudaProfilerStop, and ends
  std::filesystem::path report;       // without its extension
  double limit_s = 0;                 // the tool and all that it started are killed then
  std::function<bool()> interrupted;  // may be empty
};

struct ToolOutcome {
  std::string failure;           // one clause; empty: it worked
  bool of_all = false;           // it fails in the same way whatever it is put around
  std::filesystem::path report;  // the file; empty when there is none
  evidence::Counters counters;   // of ncu
};

// Never throw for what a tool does. A tool that is absent is a failure with the way round it.
ToolOutcome run_ncu(const ToolRun& run, MetricSet set);
ToolOutcome run_nsys(const ToolRun& run);

// The output of `ncu --csv --page raw`: a row a kernel, in the metrics' own units (bytes, nanoseconds, percent, counts).
struct NcuReport {
  std::vector<std::string> kernels;                   // their names, in order
  std::vector<std::map<std::string, double>> values;  // of each kernel; "n/a" and unreadable ones are absent
};

// Reads what stands behind the line of column names; what the tool and the program print besides is passed over. A last row that
// is cut off is left out. Nothing in `kernels` when there is no table.
NcuReport parse_ncu_csv(std::string_view text);

// One set of values for all kernels of an execution: counts and times are summed, percentages and ratios weighted by the
// kernels' durations.
std::map<std::string, double> combined(const NcuReport& report);

}  // namespace aisp::profile
