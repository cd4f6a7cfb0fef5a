// SPDX-License-Identifier: Apache-2.0
#include "evidence/sm_clock.hpp"

#include <vector>

#include "evidence/range.hpp"

namespace aisp::evidence {

std::optional<double> median_sm_clock_mhz(std::span<const GpuState> states) {
  std::vector<double> clocks_mhz;
  for (const GpuState& state : states)
    if (state.sm_clock_mhz > 0) clocks_mhz.push_back(state.sm_clock_mhz);
  if (clocks_mhz.empty()) return std::nullopt;
  return median_range(clocks_mhz).value;
}

}  // namespace aisp::evidence
