// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "base/one_way.hpp"
#include "measure/execution.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Whether timed samples were so much faster on inputs that the variant had run on before that it may remember its results. Caches
// that hold the inputs by then have the same effect.
bool may_remember(const std::vector<measure::Sample>& samples);

// The CPU times of executions on new inputs, and of second ones on each of them.
struct Repeats {
  std::vector<double> new_ms{}, known_ms{};
  // Whether nearly every second execution was faster, and their median by as much as may_remember() asks.
  bool tell() const;
};

// Executes a variant on new inputs, and again on each of them, each time in a time slice of its own.
Repeats repeat(measure::Executor& executor, pair::Session& session, const Variant& variant, base::OneWayRandom& random);

// Fails variants of a host pair that remember their results. Those that may are executed on new inputs, and again on each of
// them. All are written just before, so that caches hold them alike, and nothing but having met their contents tells one
// execution from the other.
void check_known_inputs(const Context& context, Record& record, pair::Session& session, const measure::Conditions& conditions,
                        const Samples& samples);

}  // namespace aisp::run
