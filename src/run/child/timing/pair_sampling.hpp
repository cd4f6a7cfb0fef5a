// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/apparatus.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/child/timing/samples.hpp"
#include "run/child/verification/pair_verification.hpp"

namespace aisp::run {

// Makes the stopwatch and runs rounds that do not count. Returns what the stopwatch reads beyond the work, as far as these rounds
// tell, in milliseconds.
double warm_up(const Context& context, const Stages& stages, const Record& record, Apparatus& apparatus, Start start);

// The timed rounds, and the checks of what was seen beside them; failures go to the record. `offset_ms`: of the warm-up.
Samples measure_rounds(const Context& context, const Stages& stages, Record& record, const Apparatus& apparatus,
                       const Verified& verified, double offset_ms);

}  // namespace aisp::run
