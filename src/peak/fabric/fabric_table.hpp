// SPDX-License-Identifier: Apache-2.0
// Tables of links, for people and for scripts.
#pragma once
#include <string>
#include <vector>

#include "peak/fabric/fabric.hpp"
#include "peak/fabric/slow.hpp"

namespace aisp::peak {

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
