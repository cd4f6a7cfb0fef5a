// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/child/timing/samples.hpp"
#include "run/child/verification/pair_verification.hpp"
#include "run/results/speedups.hpp"
#include "verify/sample_watch.hpp"

namespace aisp::run {

// Makes the stopwatch and runs rounds that do not count. Returns these rounds' estimate of the stopwatch's offset, in
// milliseconds.
double warm_up(const Context& context, const Stages& stages, const Record& record, Resources& resources, Start start);

// Runs the timed rounds and their checks; failures go to the record. `offset_ms`: of the warm-up.
Samples measure_rounds(const Context& context, const Stages& stages, Record& record, const Resources& resources,
                       const Verified& verified, double offset_ms);

// Returns the median of one of the samples' times; 0 if there are none.
double median_of(const std::vector<measure::Sample>& samples, double measure::Sample::*value);

// Whether some of the pair's buffers are in the host's memory, so that its caches and page migration affect the times.
bool by_host_memory(const pair::Session& session);

// Checks the CPU time of the pair's child processes. `outside_ms`: outside the timed samples, in all rounds together.
void check_children(const Context& context, Record& record, const std::vector<Timed>& timed, double outside_ms);

// Counts the findings of timed samples besides their times, and fails variants by them. `timed` in the order that `watch` knows.
void check_samples(const Context& context, Record& record, const pair::Session& session, const Verified& verified,
                   const std::vector<Timed>& timed, const verify::SampleWatch& watch);

}  // namespace aisp::run
