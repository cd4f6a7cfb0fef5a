// SPDX-License-Identifier: Apache-2.0
// Measurements between GPUs, in the process that measures. Not for use beyond src/peak.
#pragma once
#include <functional>
#include <string>

#include "peak/fabric/fabric.hpp"

namespace aisp::peak {

// Hears what is known so far, and what comes next.
using FabricTeller = std::function<void(const Fabric& so_far, const std::string& next)>;

// All GPUs that CUDA shows here, numbered from 0; without the key, figures, and names of paths.
Fabric measure_fabric(const FabricTeller& tell);
// Adds the curves, or why there are none.
void measure_curves(int gpus, Fabric& fabric, const FabricTeller& tell);
// At the largest size of the curves. Throws where elements are wrong.
CollectiveTime measure_collective(int gpus, Collective operation);

// Returns what a rank must have received of an operation with `chunk` elements for each of `ranks`.
struct Expected;
Expected expected_of(Collective operation, std::size_t chunk, int rank, int ranks);

}  // namespace aisp::peak
