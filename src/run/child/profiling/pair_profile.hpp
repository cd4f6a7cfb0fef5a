// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"

namespace aisp::run {

// Profiles the variants in the last stages, as far as requested: hardware counters and timelines. A failure here loses the
// profile, never the result; after a CUDA error the apparatus is abandoned too. `start`: from which the variants can be executed.
void look_inside(const Context& context, Stages& stages, Record& record, Apparatus& apparatus, Start start);

}  // namespace aisp::run
