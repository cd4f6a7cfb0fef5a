// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "pair/registry.hpp"

namespace aisp::pair {

// The largest limit that a pair may set for the norm of its errors. A looser one would let a wrong kernel pass.
inline constexpr double loosest_relative_l2 = 5e-2;

// Returns the faults of a pair's declaration, one clause each: names that are missing or not of their form, functions that are
// missing, cases of a sweep that its sizes cannot take, limits that limit nothing. Nothing of the pair runs.
std::vector<std::string> faults(const Entry& entry);

}  // namespace aisp::pair
