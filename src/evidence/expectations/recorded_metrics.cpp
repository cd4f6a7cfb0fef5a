// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/recorded_metrics.hpp"

#include <algorithm>
#include <cmath>

namespace aisp::evidence {

RecordedMetrics metrics_to_record(const PairResult& pair, const VariantResult& variant) {
  RecordedMetrics metrics;
  const auto add = [&](const std::string& name, double value, const std::string& unit, Direction better) {
    if (std::isfinite(value)) metrics.insert({name, {value, unit, better}});
  };
  for (const Metric& metric : variant.metrics) add(metric.name, metric.summary.median, metric.unit, metric.better);
  if (variant.inference) {
    add("ttft", variant.inference->ttft_ms.median, "ms", Direction::lower);
    // A request of one token has no further one.
    if (variant.inference->tpot_ms.count > 0) add("tpot", variant.inference->tpot_ms.median, "ms", Direction::lower);
    add("tokens_per_second", variant.inference->tokens_per_second, "tokens/s", Direction::higher);
  }
  if (variant.accuracy && (pair.narrow_types || std::ranges::any_of(pair.variants, &VariantResult::changes_precision))) {
    const bool is_further_off = variant.changes_precision && variant.accuracy->unquantized_l2 > 0;
    add("relative_l2_error", 100 * (is_further_off ? variant.accuracy->unquantized_l2 : variant.accuracy->relative_l2), "%",
        Direction::lower);
  }
  return metrics;
}

}  // namespace aisp::evidence
