// SPDX-License-Identifier: Apache-2.0
// What --sweep measured of a pair: case by variant.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "report/line_picture.hpp"
#include "report/usage.hpp"

namespace aisp::report {

struct SweepTable {
  std::string target;
  Rows rows;  // headings first
};
// One for each pair that was swept, in the order of the run; none without a sweep.
std::vector<SweepTable> sweep_tables(const std::vector<evidence::PairResult>& pairs);
// Rate, or time where a variant declares no work, over the size that the cases change; titled by the target.
std::vector<LineChart> sweep_charts(const std::vector<evidence::PairResult>& pairs);
std::string sweep_markdown(const evidence::SuiteResult& suite);

}  // namespace aisp::report
