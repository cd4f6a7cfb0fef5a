// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <vector>

namespace aisp::machine {

// The largest cluster that the current device accepts of the probe's kernel.
cudaError_t largest_cluster(int* size);

// One launch of `clusters` clusters, a block to an SM; the SM that each block ran on. Another seed has them end in another order.
cudaError_t run_clusters(int clusters, int cluster_size, unsigned seed, std::vector<unsigned>& sm_of_block);

}  // namespace aisp::machine
