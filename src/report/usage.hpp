// SPDX-License-Identifier: Apache-2.0
// Energy, memory and latencies of requests as text, the same in every report.
#pragma once
#include <string>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::report {

std::string joules_text(double joules);                             // "0.211 J", "35.2 mJ", "8.1 uJ"
std::string energy_ratio_text(const evidence::Energy& energy);      // "2.91x [2.90, 2.93]"; "-" for the baseline
std::string goodput_text(const evidence::LatencyGoodput& goodput);  // "98 %, 1180 requests/s (TTFT 5.0 ms, TPOT 0.20 ms)"

using Rows = std::vector<std::vector<std::string>>;
// Headings first; nothing but them where no variant has such a result.
Rows energy_rows(const evidence::PairResult& pair);
Rows memory_rows(const evidence::PairResult& pair);
Rows kernel_rows(const evidence::PairResult& pair);
Rows inference_rows(const evidence::PairResult& pair);

}  // namespace aisp::report
