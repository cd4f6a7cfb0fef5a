// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <span>

#include "evidence/result.hpp"

namespace aisp::evidence {

// Of the SMs, over the states that tell their clock; nothing where none does.
std::optional<double> median_sm_clock_mhz(std::span<const GpuState> states);

}  // namespace aisp::evidence
