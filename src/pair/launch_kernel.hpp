// SPDX-License-Identifier: Apache-2.0
// What a launch asks of a GPU, and what is said where it asks too much.
#pragma once
#include <cstddef>

namespace aisp::pair {

// Throw Unsupported with what is needed and what there is; bytes are of one block, static ones too.
void demand_shared_memory(std::size_t needed, std::size_t available);
void demand_clusters(unsigned blocks, bool has_clusters);

}  // namespace aisp::pair
