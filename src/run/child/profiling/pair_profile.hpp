// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"

namespace aisp::run {

// The stages behind all others that look inside the variants, as far as they were asked for: hardware counters and timelines.
// Whatever goes wrong here costs what they would have shown, never the result; a CUDA error costs the apparatus too, which is
// abandoned then. `start`: from which the variants can be executed.
void look_inside(const Context& context, Stages& stages, Record& record, Apparatus& apparatus, Start start);

}  // namespace aisp::run
