// SPDX-License-Identifier: Apache-2.0
// The results of timed rounds, and the stopwatch's own part of them.
#pragma once
#include <vector>

#include "measure/statistics/ratio.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/results/speedups.hpp"

namespace aisp::run {

struct Samples {
  std::vector<Timed> timed{};      // the baseline first
  std::vector<double> probe_ms{};  // raw readings of the stopwatch for the least work there is, one a round
  // The stopwatch's own time as far as it was known when the last partial result was sent; without one, by the warm-up.
  double known_offset_ms = 0;
  int constants_since_round = 0;  // from which on constant inputs are what they are at the end
};

// How long the least work there is (Stopwatch::time_probe) takes by itself.
struct ProbeWork {
  double ms = 0;          // 0: the stopwatch reads nothing but it, or there is none
  bool measured = false;  // by CUPTI, not assumed
};
// Returns the probe's work as known before the audit.
ProbeWork assumed_probe_work(const Context& context);

// It refers to the readings in `samples`, which must outlive it.
measure::Correction correction_of(const Pair& pair, const Samples& samples, const ProbeWork& work);

// The corrected times so far, of each variant with samples, go to its result.
void note_times(const Request& request, Record& record, const std::vector<Timed>& timed, const measure::Correction& correction);

}  // namespace aisp::run
