// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/tolerance.hpp>

#include <optional>
#include <string>

#include "evidence/result.hpp"

namespace aisp::run {

// A warning where a limit that the pair chose itself is more than a thousand times the error that was found: what it is meant to
// catch would pass. Limits that come from the number types are not anybody's choice.
std::optional<std::string> loose_limit(const evidence::VariantResult& variant, const Tolerances& tolerances);

}  // namespace aisp::run
