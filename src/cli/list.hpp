// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "pair/registry.hpp"

namespace aisp::cli {

// What `aisp list-targets` and `aisp run --list` print.
void print_targets(const std::vector<const pair::Entry*>& entries, bool json);

}  // namespace aisp::cli
