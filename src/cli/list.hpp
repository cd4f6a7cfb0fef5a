// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "suite/selection.hpp"

namespace aisp::cli {

// Prints the answer of `aisp list-targets` and `aisp run --list`: a table, and with `json` an array to that file, or for "-" the
// array alone.
void print_targets(const suite::Selection& selection, const std::string& json);

// The sizes and the cases that a pair declares, as list-targets and explain show them.
nlohmann::json sizes_json(const Pair& pair);
nlohmann::json cases_json(const Cases& cases);

}  // namespace aisp::cli
