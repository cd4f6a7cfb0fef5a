// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/child/timing/samples.hpp"

namespace aisp::run {

// Executes the baseline of a pair of the GPU, prepared but not verified, before any other variant is prepared or runs. Returns
// its time in milliseconds; nothing if it could not be timed, or not as samples are.
std::optional<double> time_baseline_first(const Context& context, Record& record, pair::Session& session);

// Compares the baseline's timed samples with its first executions where no other variant is prepared or runs: in another process
// or, on a GPU, in this one at first (`first_ms`). There it takes what it takes when nobody has left anything behind. Where the
// samples took longer, it is executed here and in processes of its own in turns, so that a busy machine makes both longer, and
// the baseline fails if that is so again.
void check_baseline_alone(const Context& context, const Stages& stages, Record& record, Resources& resources,
                          const Samples& samples, std::optional<double> first_ms);

// Executes the baseline as the verification does, `baseline_runs` times, and sends the times to the parent.
void send_baseline_times(const Context& context, Record& record, pair::Session& session);

}  // namespace aisp::run
