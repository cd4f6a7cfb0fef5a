// SPDX-License-Identifier: Apache-2.0
// The part of what could be gained at all that a variant has gained.
#pragma once
#include <optional>

#include "evidence/range.hpp"
#include "evidence/result.hpp"

namespace aisp::evidence {

// Returns the part of the way from the baseline's median time to the variant's lower bound that the variant has gone, in percent,
// with the interval that its speedup gives it: 0 is as slow as the baseline, 100 at the machine's limit. Nothing where no speedup
// may be claimed, where something else than time judges, without a lower bound, and where the baseline is so near to it (5 %)
// that there is no gap.
std::optional<Range> gap_closed(const PairResult& pair, const VariantResult& variant);

}  // namespace aisp::evidence
