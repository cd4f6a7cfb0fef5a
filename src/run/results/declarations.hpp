// SPDX-License-Identifier: Apache-2.0
// A pair's declarations: their form in results, and checks for those that are impossible or meaningless.
#pragma once
#include <aisp/pair.hpp>
#include <aisp/tolerance.hpp>

#include <optional>
#include <string>

#include "evidence/result.hpp"

namespace aisp::run {

// Sums up the cost of all phases.
evidence::DeclaredCost declared(const Cost& cost);

// Describes a cost that no workload of this device has: a negative amount or none that is a number, nothing at all, device memory
// on the host.
std::optional<std::string> impossible_cost(const Cost& cost, Device device);

// Returns a warning if a limit that the pair chose itself is more than a thousand times the measured error: errors it is meant to
// catch would pass. Automatic limits, which follow from number types, are exempt.
std::optional<std::string> loose_limit(const evidence::VariantResult& variant, const Tolerances& tolerances);

}  // namespace aisp::run
