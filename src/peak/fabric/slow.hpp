// SPDX-License-Identifier: Apache-2.0
// Names GPUs and links that are slower than their neighbours.
#pragma once
#include <string>
#include <vector>

#include "peak/fabric/fabric.hpp"

namespace aisp::peak {

// A value is slow if it lies more than so many deviations on the wrong side of the median. A deviation is 1.4826 times the median
// absolute deviation, which is the standard deviation where values are normal, and at least the part of the median by which equal
// GPUs are known to differ: of eight GPUs, chance alone often makes the former too small.
inline constexpr double most_deviations = 6;

struct Slow {
  std::string subject;  // "GPU 3", "GPU 1 to GPU 2"
  std::string figure;   // "HBM read"
  Unit unit = Unit::bytes_per_second;
  double value = 0, usual = 0;
  std::string usual_of;   // "the median of 8", "recorded on an H200"
  double deviations = 0;  // from `usual`
};

struct Judged {
  std::vector<Slow> slow;
  std::vector<std::string> unclear;  // two GPUs differ, and nothing tells which of them is slow
};

// Compares GPUs of one model, and paths of one kind, with each other and with those of `peers`, recorded on other machines. With
// less than three values the median is what is recorded of the model.
Judged judge(const Fabric& fabric, const std::vector<Fabric>& peers);

}  // namespace aisp::peak
