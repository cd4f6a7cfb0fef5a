// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <vector>

#include "measure/sample.hpp"

namespace aisp::measure {

// What the workload reports about the execution of `variant` that has just ended.
std::vector<MetricValue> collect_metrics(Workload& workload, std::string_view variant);

}  // namespace aisp::measure
