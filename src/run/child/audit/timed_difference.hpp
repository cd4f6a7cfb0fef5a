// SPDX-License-Identifier: Apache-2.0
// Compares the durations of audited executions with the timed samples.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/one_way.hpp"
#include "run/child/audit/auditor.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// The conditions of the samples that audited executions are compared with.
struct TimedComparison {
  TimingMode mode;
  Start start;
  double offset_ms;
  bool one_gpu;
  bool by_host_memory;
  int constants_since_round;
};

struct Medians {  // medians of one variant's audited executions
  double busy_ms = 0, span_ms = 0, host_ms = 0;
  double run_ms = 0;  // host time in run()
  double calls = 0;   // kernels and copies
  double nodes = 0;   // kernels that graphs launched
};

Medians medians_of(const std::vector<AuditedRun>& runs);

struct TimedDifference {
  std::string message, advice;
};

// Compares audited durations with `raw_ms`, the timed median of such executions; nothing if they agree.
std::optional<TimedDifference> difference(const Variant& variant, const Medians& medians, double raw_ms,
                                          const TimedComparison& with);

// Returns the inputs of `count` timed rounds from `since_round` on, drawn at random in proportion to the samples taken on them.
// Empty if there are no samples.
std::vector<std::uint64_t> timed_inputs(const Timed& timed, int since_round, int count, base::OneWayRandom& random);

// Whether executions on `inputs` of timed rounds, with these `medians`, took as long as the samples when the variant first met
// these inputs, and as all samples on them; otherwise it may have remembered results. False if it had met all of them before.
bool took_as_timed(const Timed& timed, const std::vector<std::uint64_t>& inputs, const Medians& medians,
                   const TimedComparison& with);

}  // namespace aisp::run
