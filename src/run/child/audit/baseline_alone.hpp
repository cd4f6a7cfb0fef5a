// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Compares the baseline's timed samples with its first executions in another process, in which no other variant is prepared or
// runs. There it takes what it takes when it is verified and nobody has left anything behind. Where the samples took longer, both
// are executed in turns, so that a busy machine makes both longer, and the baseline fails if that is so again.
void check_baseline_alone(const Context& context, const Stages& stages, Record& record, Resources& resources,
                          const Samples& samples);

// Executes the baseline as the verification does, `baseline_runs` times, and sends the times to the parent.
void send_baseline_times(const Context& context, Record& record, pair::Session& session);

}  // namespace aisp::run
