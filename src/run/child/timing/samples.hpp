// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "run/results/speedups.hpp"

namespace aisp::run {

// What rounds gave.
struct Samples {
  std::vector<Timed> timed{};      // the baseline first
  std::vector<double> probe_ms{};  // raw readings of the stopwatch for the least work there is, one a round
  // The stopwatch's own time as far as it was known when the last partial result was sent; without one, by the warm-up.
  double known_offset_ms = 0;
};

}  // namespace aisp::run
