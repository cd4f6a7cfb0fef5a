// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"

namespace aisp::run {

// Verifies the pair at the sizes of its edges, each in a session of its own; none where somebody set sizes, because edges are of
// the pair's own. `start`: from which its variants were verified at the timed shape. Failures go to the record.
void verify_edges(const Context& context, Stages& stages, Record& record, Start start);

}  // namespace aisp::run
