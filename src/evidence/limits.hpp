// SPDX-License-Identifier: Apache-2.0
// The reasons that kept each variant from its lower bound.
#pragma once
#include "evidence/result.hpp"

namespace aisp::evidence {

// Says so in every floor that does not yet: a power cap and a ceiling that is near were told when the floor was made. By
// counters where there are any; without them "launches and waits" where the GPU had nothing to do for much of the time, and
// otherwise what only counters could tell apart.
void name_limits(PairResult& pair);

}  // namespace aisp::evidence
