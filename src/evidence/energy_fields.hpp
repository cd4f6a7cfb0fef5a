// SPDX-License-Identifier: Apache-2.0
// Not for use beyond evidence's own .cpp files.
#pragma once
#include "evidence/energy.hpp"

namespace aisp::evidence {

template <class Visitor>
void describe(EnergyRatio& r, Visitor& visit) {
  visit("value", r.value);
  visit("low", r.low);
  visit("high", r.high);
}

template <class Visitor>
void describe(Energy& e, Visitor& visit) {
  visit("median_j", e.median_j);
  visit("low_j", e.low_j);
  visit("high_j", e.high_j);
  visit("average_w", e.average_w);
  visit("run_ms", e.run_ms);
  visit("gflop_per_j", e.gflop_per_j);
  visit("gb_per_j", e.gb_per_j);
  visit("ratio", e.ratio);
  visit("runs", e.runs);
  visit("raw_j", e.raw_j);
  visit("counter_step_ms", e.counter_step_ms);
}

}  // namespace aisp::evidence
