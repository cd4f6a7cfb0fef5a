// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "evidence/result.hpp"
#include "run/wire/request.hpp"

namespace aisp::run {

struct ToolSettings {
  std::filesystem::path folder;  // folder of the run
  std::string pair_folder;       // below it: "ch07_transpose"
  std::string executable;        // aisp itself
  double ncu_limit_s = 180;
  double nsys_limit_s = 120;
  std::function<bool()> interrupted;
};

// Runs Nsight on each variant of a pair that passed, after its child has ended: ncu if counters were requested and CUPTI gave
// none, nsys at the level `full`. Reports go to <folder>/<pair_folder>/profiles/; result.lost says what is missing.
void add_tool_profiles(evidence::PairResult& result, const Request& request, const ToolSettings& settings);

}  // namespace aisp::run
