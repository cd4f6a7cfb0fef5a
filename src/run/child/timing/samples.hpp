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
  std::vector<double> probe_ms{};  // raw readings of the stopwatch for the probe, the least work possible, one a round
  // The stopwatch's offset as known when the last partial result was sent; before that, by the warm-up.
  double known_offset_ms = 0;
  int constants_since_round = 0;  // the round since which constant inputs have not changed
};

// The duration of the probe's work (Stopwatch::time_probe) by itself.
struct ProbeWork {
  double ms = 0;          // 0: the stopwatch reads this work alone, or there is none
  bool measured = false;  // by CUPTI, not assumed
};
// Returns the probe's work as known before the audit.
ProbeWork assumed_probe_work(const Context& context);

// Returns a correction that refers to the readings in `samples`, which must outlive it.
measure::Correction correction_of(const Pair& pair, const Samples& samples, const ProbeWork& work);

// Replaces a sample's times by the slowest rank's; times of all ranks, and how far they are apart, become metrics of the sample.
void take_slowest(pair::RankGroup& ranks, measure::Sample& sample);

// Writes the corrected times so far into the result of each variant with samples.
void note_times(const Request& request, Record& record, const std::vector<Timed>& timed, const measure::Correction& correction);

}  // namespace aisp::run
