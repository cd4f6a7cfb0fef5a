// SPDX-License-Identifier: Apache-2.0
// As the child that asked the driver tells it, and `aisp doctor --json`. What is unknown is left out.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "machine/machine.hpp"

namespace aisp::machine {

void to_json(nlohmann::json& json, const Machine& machine);
void from_json(const nlohmann::json& json, Machine& machine);

}  // namespace aisp::machine
