// SPDX-License-Identifier: Apache-2.0
// Names of hardware metrics, and what they mean in a result.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "evidence/profile/profile.hpp"

namespace aisp::profile {

// Deep: DRAM traffic and FLOPs, which verification needs, in few passes. Full: all that a result holds.
enum class MetricSet { deep, full };

// For all chips that are known; one that lacks some of them gives the others.
std::vector<std::string> metric_names(MetricSet set);

// Makes counters of the values read under these names. Units are those of the metrics: bytes, nanoseconds, percent, counts.
evidence::Counters counters_from(const std::map<std::string, double>& values);

}  // namespace aisp::profile
