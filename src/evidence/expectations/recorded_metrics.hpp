// SPDX-License-Identifier: Apache-2.0
// Metrics of a pair's subject, as recorded runs keep them: tokens a second, time to first token, pages that moved.
#pragma once
#include <limits>
#include <map>
#include <string>

#include "evidence/result.hpp"

namespace aisp::evidence {

struct RecordedMetric {
  double value = std::numeric_limits<double>::quiet_NaN();  // median over the samples; a file that lacks it is refused
  std::string unit;
  Direction better = Direction::lower;
};
using RecordedMetrics = std::map<std::string, RecordedMetric>;  // by name

// The metrics that a variant reported, and of its tokens, where it marks some, `ttft`, `tpot` and `tokens_per_second`, unless it
// reported one of that name. Where a variant of the pair changes the precision, or a buffer holds narrow types, also
// `relative_l2_error`, against the float64 reference that rounds nothing but its inputs: what a speedup costs. Without those that
// are no number, which no file can hold.
RecordedMetrics metrics_to_record(const PairResult& pair, const VariantResult& variant);

}  // namespace aisp::evidence
