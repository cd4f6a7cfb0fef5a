// SPDX-License-Identifier: Apache-2.0
// All measurements of one pair on one kind of hardware against its expectation. Part of analysis.hpp, apart for its length.
#pragma once
#include <vector>

#include "evidence/expectations/analysis.hpp"

namespace aisp::evidence {

struct Measurement {
  const RunRecord* run;
  const PairResult* pair;
};

// One row for each optimized variant. `measurements`: passed, of the same code, oldest first, at least one; `expected` may be
// null.
std::vector<AnalysisRow> judge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold);

}  // namespace aisp::evidence
