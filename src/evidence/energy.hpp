// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

namespace aisp::evidence {

struct EnergyRatio {  // baseline over variant: above 1, the variant needs less
  double value = 0, low = 0, high = 0;
};

// Of executions back to back with whatever they find in the caches. Whole boards by NVML's counter, idle power included.
struct Energy {
  double median_j = 0, low_j = 0, high_j = 0;  // a run; the median over the windows and its 95 % interval
  double average_w = 0;
  double run_ms = 0;                     // a run, back to back
  double gflop_per_j = 0, gb_per_j = 0;  // of the declared cost; 0 where it declares none
  std::optional<EnergyRatio> ratio;      // absent for the baseline
  std::size_t runs = 0;                  // in all windows
  std::vector<double> raw_j;             // a run, one value a window; equal places were next to one another in time
  double counter_step_ms = 0;            // between two updates of the counter
};

}  // namespace aisp::evidence
