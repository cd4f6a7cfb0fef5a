// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>

#include "evidence/profile.hpp"
#include "profile/occupancy.hpp"
#include "profile/recording.hpp"

namespace aisp::profile {

// `device`: an execution in which only the GPU was recorded, `everything`: one with the host's calls, which slow it down.
// `limits`: of each GPU by its CUDA ordinal.
evidence::Profile summarize(const Recording& device, const Recording& everything, const std::map<int, SmLimits>& limits);

}  // namespace aisp::profile
