// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/session.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/results/speedups.hpp"

namespace aisp::run {

// Measures for --energy the joules a run of each variant, in a stage of its own. `timed`: with their times. Records the reason if
// it cannot.
void measure_energy(const Context& context, Stages& stages, Record& record, pair::Session& session,
                    const std::vector<Timed>& timed);

}  // namespace aisp::run
