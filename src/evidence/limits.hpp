// SPDX-License-Identifier: Apache-2.0
// The reasons that kept each variant from its lower bound.
#pragma once
#include "evidence/result.hpp"

namespace aisp::evidence {

// Names the limit in every floor that has none yet: a power cap and a near ceiling were named when the floor was made. It uses
// counters if there are any; without them it names "launches and waits" if the GPU was idle for much of the time, and otherwise
// the limits that only counters could distinguish.
void name_limits(PairResult& pair);

}  // namespace aisp::evidence
