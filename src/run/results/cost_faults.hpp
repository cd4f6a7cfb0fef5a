// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/pair.hpp>

#include <optional>
#include <string>

namespace aisp::run {

// What no workload of this device costs: a negative amount or none that is a number, nothing at all, device memory on the host.
std::optional<std::string> impossible_cost(const Cost& cost, Device device);

}  // namespace aisp::run
