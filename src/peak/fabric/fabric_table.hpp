// SPDX-License-Identifier: Apache-2.0
// Tables of links, for people and for scripts.
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

using Rows = std::vector<std::vector<std::string>>;  // the first one is the heading

struct FabricTable {
  std::string title;
  Rows rows;
};
// GPUs side by side, matrices (from the row to the column), and collectives. What was not measured has no table.
std::vector<FabricTable> fabric_tables(const Fabric& fabric);
// The matrix of one-way copies alone.
FabricTable copy_matrix(const Fabric& fabric);
// "2 x NVIDIA H200, driver 580.159, 700 W, NCCL 2.28.3; measured 2026-11-21T10:00:00Z"
std::string heading(const Fabric& fabric);

// "GPU 3 is slow: HBM read 3.01 TB/s, 6 % below 3.21 TB/s (the median of 8), 7.9 deviations"
std::string line_of(const Slow& slow);
// Wrong results of collectives, a line for each operation.
std::vector<std::string> wrong_results(const Fabric& fabric);

// One value a row: figure, gpu, peer, bytes, value, unit.
Rows fabric_values(const Fabric& fabric);

}  // namespace aisp::peak
