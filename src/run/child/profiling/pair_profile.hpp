// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"

namespace aisp::run {

// Profiles the variants in the last stages, as far as requested: hardware counters and timelines. A failure here loses the
// profile, never the result; after a CUDA error the resources are abandoned too. `start`: from which the variants can be
// executed.
void profile_pair(const Context& context, Stages& stages, Record& record, Resources& resources, Start start);

}  // namespace aisp::run
