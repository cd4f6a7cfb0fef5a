// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/workload.hpp>

#include <vector>

namespace aisp::machine {

// Every type of math of one phase, with FLOPs; a type that is named twice comes once.
std::vector<MoreMath> math_of(const Cost& cost);
// What all phases do together, as one phase; a cost without phases is its own.
Cost whole(const Cost& cost);

}  // namespace aisp::machine
