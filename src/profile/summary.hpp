// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>

#include "evidence/profile/profile.hpp"
#include "profile/occupancy.hpp"
#include "profile/recording.hpp"

namespace aisp::profile {

// `device`: an execution in which only the GPU was recorded, `everything`: one with the host's calls, which slow it down.
// `limits`: of each GPU by its CUDA ordinal.
evidence::Profile summarize(const Recording& device, const Recording& everything, const std::map<int, SmLimits>& limits);

// Recording makes an execution longer: the host's calls and the nodes of graphs take more time. Where it took longer than the
// median of the timed samples, that is the span, and what is idle in it is the rest beside the recorded work.
void shorten_to_timed(evidence::Profile& profile, double timed_ms);

}  // namespace aisp::profile
