// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <random>

#include "measure/execution.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Whether timed samples were so much faster on inputs that the variant had run on before that it may remember its results. Caches
// that hold the inputs by then have the same effect.
bool may_remember(const std::vector<measure::Sample>& samples);

// The CPU times of executions on new inputs, and on inputs of timed rounds: other programs lengthen none of them.
struct OnInputs {
  std::vector<double> new_ms{}, known_ms{};
  // Whether each on known inputs was faster than each on new ones, and their medians differ by as much as may_remember() asks.
  bool tells() const;
};

// Fails variants of a host pair that remember their results. Those that may are executed on new inputs and on inputs of timed
// rounds in turn. All are written just before, so that caches hold either alike, and only the contents tell one from the other.
void check_known_inputs(const Context& context, Record& record, pair::Session& session, const measure::Conditions& conditions,
                        const Samples& samples);

}  // namespace aisp::run
