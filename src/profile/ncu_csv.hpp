// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::profile {

// What `ncu --csv --page raw` printed: a row a kernel, in the metrics' own units (bytes, nanoseconds, percent, counts).
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
