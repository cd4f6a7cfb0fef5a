// SPDX-License-Identifier: Apache-2.0
#include "evidence/gap_closed.hpp"

#include <algorithm>

namespace aisp::evidence {

std::optional<Range> gap_closed(const PairResult& pair, const VariantResult& variant) {
  constexpr double no_gap = 0.95;
  const Speedup* speedup = claimable(pair, variant);
  if (speedup == nullptr || pair.judged_by != time_metric || !variant.floor || !pair.variants.front().timing) return std::nullopt;
  const double floor = variant.floor->milliseconds / pair.variants.front().timing->summary.median;
  if (!(floor > 0 && floor < no_gap && speedup->low > 0)) return std::nullopt;
  // Ceilings are measured too: a little beyond them is at the limit.
  const auto percent = [&](double ratio) { return std::min(100.0, 100 * (1 - 1 / ratio) / (1 - floor)); };
  return Range{percent(speedup->value), percent(speedup->low), percent(speedup->high)};
}

}  // namespace aisp::evidence
