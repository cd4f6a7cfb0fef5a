// SPDX-License-Identifier: Apache-2.0
// Checks a launch's requirements against the GPU, and says what it exceeds.
#pragma once
#include <cstddef>

namespace aisp::pair {

// Throw Unsupported with the needed and the available amount; bytes are of one block, static ones included.
void demand_shared_memory(std::size_t needed, std::size_t available);
void demand_clusters(unsigned blocks, bool has_clusters);

}  // namespace aisp::pair
