// SPDX-License-Identifier: Apache-2.0
// Checks --size and --sweep against the selected pairs' declarations, and derives their points.
#pragma once
#include <vector>

#include "pair/registry.hpp"
#include "suite/settings/configuration.hpp"

namespace aisp::suite {

// Throws base::Error (usage) for sizes that a selected pair does not declare or cannot take, for --size of a name that a case of
// the sweep sets, and for too many points of a pair.
void check_sizes(const std::vector<const pair::Entry*>& selected, const Configuration& configuration);

// Returns, under --sweep, the pairs that declare cases; throws base::Error (nothing) if none does.
std::vector<const pair::Entry*> with_cases(std::vector<const pair::Entry*> selected, const Configuration& configuration);

// Returns the points that a run measures of the pair: each of its cases under --sweep, at each combination of the values that
// --size gives; one point at least. No two have one name.
std::vector<Point> points_of(const pair::Entry& entry, const Configuration& configuration);

}  // namespace aisp::suite
