// SPDX-License-Identifier: Apache-2.0
// From the tokens that samples marked to latencies of requests and tokens.
#pragma once
#include <optional>
#include <vector>

#include "evidence/result.hpp"
#include "measure/sample.hpp"

namespace aisp::run {

struct LatencyTargets {  // 0: none
  double ttft_ms = 0, tpot_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0; }
};

// Absent when the variant marks no tokens. `offset_ms`: the stopwatch's own, in the time of each sample.
std::optional<evidence::InferenceTiming> inference_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                                      const LatencyTargets& targets, const std::vector<double>& percentiles);

}  // namespace aisp::run
