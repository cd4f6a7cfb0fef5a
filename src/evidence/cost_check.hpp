// SPDX-License-Identifier: Apache-2.0
// Compares a declared cost with hardware counters. Floors and percentages are only as good as the declaration.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::evidence {

// A part of a cost, for the variant nearest to its declaration from above, or farthest below it.
struct CostPart {
  std::string variant;
  double declared = 0;
  double measured = 0;
  double unwritten = 0;  // bytes that may have been left in L2
  std::string fault;     // one clause with both numbers; empty: none
  double ratio() const { return measured / declared; }
};

struct CostCheck {
  std::optional<CostPart> bytes;  // device memory traffic
  std::optional<CostPart> flops;
  std::string not_compared;  // why neither was compared
  std::vector<std::string> faults() const;
};

inline constexpr double cost_tolerance = 0.10;

// The rule. A cost is the least that a workload must do, so of all variants the one with the least work over its declaration
// counts.
// - Bytes more than 10 % below the declaration: the declaration has bytes that need not move, and floors are too high.
// - Bytes more than 10 % above, where the pair is bound by memory and the declared bytes are more than L2 holds: no variant comes
//   near what was declared, so either the declaration lacks bytes or no variant is good.
// - FLOPs more than 10 % below likewise; more are allowed, because padding and recomputation are a variant's own business.
// Where a tool did not drain L2 at the end, up to its size may not have been written yet, and counts as written for the first.
CostCheck check_cost(const PairResult& pair);

// Whether pairs on a GPU passed but no counter could be read for any of them, so that no cost was checked.
bool nothing_counted(const SuiteResult& suite);
// Fails a passed pair if its check has faults.
void judge_cost(PairResult& pair);

}  // namespace aisp::evidence
