// SPDX-License-Identifier: Apache-2.0
// --size and --sweep against what the selected pairs declare.
#pragma once
#include <vector>

#include "pair/registry.hpp"
#include "suite/configuration.hpp"

namespace aisp::suite {

// Throws base::Error (usage) for sizes that a selected pair does not declare or cannot take, and for --size of a name that a case
// of the sweep sets.
void check_sizes(const std::vector<const pair::Entry*>& selected, const Configuration& configuration);

// Under --sweep, those of the pairs that declare cases; throws base::Error (nothing) where none does.
std::vector<const pair::Entry*> with_cases(std::vector<const pair::Entry*> selected, const Configuration& configuration);

}  // namespace aisp::suite
