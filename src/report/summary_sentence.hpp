// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "evidence/run_summary.hpp"

namespace aisp::report {

// Returns a run in one sentence that can be passed on as it is: "155 of 157 pairs became faster on one NVIDIA H100, half of them
// 2.7x or more; ... 6 pairs have no result: 4 interrupted, 2 skipped (needs 2 GPUs, 1 visible)."
std::string summary_sentence(const evidence::RunRecord& run, const evidence::RunSummary& summary);

}  // namespace aisp::report
