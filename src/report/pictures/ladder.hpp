// SPDX-License-Identifier: Apache-2.0
// The gain of each step of a pair, as a picture. Private to report.
#pragma once
#include "evidence/result.hpp"
#include "report/pictures/bar_picture.hpp"

namespace aisp::report {

// The baseline, the steps in their order with the gain of each, then controls and libraries; those that may be claimed.
BarChart ladder_chart(const evidence::PairResult& pair);

}  // namespace aisp::report
