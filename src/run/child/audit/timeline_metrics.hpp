// SPDX-License-Identifier: Apache-2.0
// The timing of a variant's kernels and copies, as metrics of a pair that asks for them.
#pragma once
#include <vector>

#include "evidence/result.hpp"
#include "run/child/audit/auditor.hpp"

namespace aisp::run {

// Returns one value for each audited execution. `timed_ms`: the median of the variant's timed samples; 0 if they measure
// something else. Recording makes executions longer; time beyond `timed_ms` is not counted as idle.
std::vector<evidence::Metric> timeline_metrics(const std::vector<AuditedRun>& runs, double timed_ms,
                                               const std::vector<double>& percentiles = {});

}  // namespace aisp::run
