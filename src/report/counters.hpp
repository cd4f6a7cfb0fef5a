// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

// A variant's name, and what hardware counters said of it.
using CountedRow = std::pair<std::string, const evidence::Counters*>;
// The first row the column names; empty without rows.
std::vector<std::vector<std::string>> counters_table(const std::vector<CountedRow>& variants);
// Returns the hardware counters of a pair's variants, the first row the column names; empty without counters.
std::vector<std::vector<std::string>> counters_table(const evidence::PairResult& pair);

// Declared against measured cost of every pair, the first row the column names.
std::vector<std::vector<std::string>> cost_table(const evidence::SuiteResult& suite);

}  // namespace aisp::report
