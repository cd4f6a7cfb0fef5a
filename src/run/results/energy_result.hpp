// SPDX-License-Identifier: Apache-2.0
// From windows of the energy counter to results.
#pragma once
#include <optional>
#include <vector>

#include "evidence/result.hpp"
#include "measure/energy.hpp"

namespace aisp::run {

// Nothing without windows.
std::optional<evidence::Energy> energy_of(const std::vector<measure::EnergyWindow>& windows, const evidence::DeclaredCost& cost,
                                          const std::vector<double>& steps_s);
// Median of the rounds' own ratios with what was seen of them, so that what both share in a round (temperature, clock) drops out.
evidence::EnergyRatio energy_ratio(const std::vector<measure::EnergyWindow>& baseline,
                                   const std::vector<measure::EnergyWindow>& variant);

}  // namespace aisp::run
