// SPDX-License-Identifier: Apache-2.0
// How a variant's kernels and copies lie in time, as metrics of a pair that asks for them.
#pragma once
#include <vector>

#include "evidence/result.hpp"
#include "run/child/audit/auditor.hpp"

namespace aisp::run {

// One value for each audited execution. `timed_ms`: the median of the variant's timed samples; 0 where they are of something
// else. Recording makes executions longer, and what one took beyond that is not counted as idle.
std::vector<evidence::Metric> timeline_metrics(const std::vector<AuditedRun>& runs, double timed_ms,
                                               const std::vector<double>& percentiles = {});

}  // namespace aisp::run
