// SPDX-License-Identifier: Apache-2.0
// What the stopwatch reads beyond the work itself.
#pragma once
#include "measure/statistics/ratio.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// How long the least work there is (Stopwatch::time_probe) takes by itself.
struct ProbeWork {
  double ms = 0;          // 0: the stopwatch reads nothing but it, or there is none
  bool measured = false;  // by CUPTI, not assumed
};
// What is known before the audit.
ProbeWork assumed_probe_work(const Context& context);

// It refers to the readings in `samples`, which must outlive it.
measure::Correction correction_of(const Pair& pair, const Samples& samples, const ProbeWork& work);

// The corrected times so far, of each variant with samples, go to its result.
void note_times(const Request& request, Record& record, const std::vector<Timed>& timed, const measure::Correction& correction);

}  // namespace aisp::run
