// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "base/system/terminal.hpp"
#include "evidence/comparison/comparison.hpp"
#include "evidence/comparison/history.hpp"

namespace aisp::report {

// Rows of a table with a header; only what changed unless `all`. A change below `threshold` (0.05) is slight.
std::vector<std::vector<std::string>> comparison_rows(const evidence::Comparison& comparison, bool all, double threshold,
                                                      const base::Painter& paint);
// Returns the text above the table about runs of two machines; ends with a newline unless empty.
std::string comparison_heading(const evidence::Comparison& comparison);
// Returns the text below the table: changed statuses, pairs of one side only, likely causes. Ends with a newline unless empty.
std::string comparison_notes(const evidence::Comparison& comparison);
// "b compared with a", for one of several comparisons.
std::string comparison_title(const evidence::Comparison& comparison);
// "b is 1.90x a over 40 kernels of 17 pairs ...", with its newline; empty where no time of both is known.
std::string overall_text(const evidence::Comparison& comparison);
// One comparison, or a list of several; `raw`: with the samples behind each value.
std::string comparison_json(const std::vector<evidence::Comparison>& comparisons, double threshold, bool raw = false);

std::vector<std::vector<std::string>> history_rows(const std::vector<evidence::Series>& history, bool all);
std::string history_notes(const std::vector<evidence::Series>& history);
std::string history_json(const std::vector<evidence::Series>& history);

}  // namespace aisp::report
