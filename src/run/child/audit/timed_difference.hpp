// SPDX-License-Identifier: Apache-2.0
// Compares the durations of audited executions with the timed samples.
#pragma once
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "run/child/audit/auditor.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// How the samples were taken that audited executions are held against.
struct Comparison {
  TimingMode mode;
  Start start;
  double offset_ms;
  bool one_gpu;
  bool by_host_memory;
  int constants_since_round;
};

struct Medians {  // of one variant's audited executions
  double busy_ms = 0, span_ms = 0, host_ms = 0;
  double run_ms = 0;  // of the host in run()
  double calls = 0;   // kernels and copies
  double nodes = 0;   // kernels that graphs launched
};

Medians medians_of(const std::vector<AuditedRun>& runs);

struct Difference {
  std::string message, advice;
};

// Between what audited executions took and `raw_ms`, which executions like them were timed as.
std::optional<Difference> difference(const Variant& variant, const Medians& medians, double raw_ms, const Comparison& with);

// Inputs of `count` timed rounds from `since_round` on, drawn at random; each comes as often as samples were taken on it. None
// where no sample was.
std::vector<std::uint64_t> timed_inputs(const Timed& timed, int since_round, int count, std::mt19937_64& random);

// `medians`: of executions on `inputs` of timed rounds. They must fit what was timed when the variant met these inputs, and what
// was timed on them in all, or else it had only remembered them; where it had met all of them before, nothing speaks for it.
bool took_as_timed(const Timed& timed, const std::vector<std::uint64_t>& inputs, const Medians& medians, const Comparison& with);

}  // namespace aisp::run
