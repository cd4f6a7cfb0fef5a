// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

// Returns the hardware counters of a pair's variants, the first row the column names; empty without counters.
std::vector<std::vector<std::string>> counters_table(const evidence::PairResult& pair);

// Declared against measured cost of every pair, the first row the column names.
std::vector<std::vector<std::string>> cost_table(const evidence::SuiteResult& suite);

}  // namespace aisp::report
