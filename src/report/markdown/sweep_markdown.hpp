// SPDX-License-Identifier: Apache-2.0
// Results of a pair at several points, by --sweep or several values of --size: point by variant.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"
#include "report/usage.hpp"

namespace aisp::report {

struct SweepTable {
  std::string target;
  Rows rows;  // headings first
};
// One for each pair that was swept, in the order of the run; none without a sweep.
std::vector<SweepTable> sweep_tables(const std::vector<evidence::PairResult>& pairs);
// The same, a short row for each point.
std::vector<SweepTable> sweep_summaries(const std::vector<evidence::PairResult>& pairs);
std::string sweep_markdown(const evidence::SuiteResult& suite);

}  // namespace aisp::report
