// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>

#include "evidence/profile.hpp"
#include "profile/occupancy.hpp"
#include "profile/recording.hpp"

namespace aisp::profile {

// `device`: an execution in which only the GPU was recorded, `everything`: one with the host's calls, which slow it down.
// `limits`: of each GPU by its CUDA ordinal. `graphs`: an execution in which graphs were recorded as a whole, of a variant that
// launches some. The timeline is then taken from it, and the GPU is at work for as long as both executions allow: the graph's
// own time holds the gaps between its nodes, and nodes that are recorded one by one take longer than they do otherwise.
evidence::Profile summarize(const Recording& device, const Recording& everything, const std::map<int, SmLimits>& limits,
                            const Recording* graphs = nullptr);

}  // namespace aisp::profile
