// SPDX-License-Identifier: Apache-2.0
// The memory that cudaMallocAsync has allocated, by the pools' own account.
#pragma once
#include <cstdint>
#include <vector>

namespace aisp::pair {

struct PoolUse {
  std::uint64_t used_bytes = 0;      // allocated now
  std::uint64_t reserved_bytes = 0;  // reserved from the driver now
  std::uint64_t most_used_bytes = 0;
  std::uint64_t most_reserved_bytes = 0;
};

// Returns the use of the pools of cudaMallocAsync on these GPUs; zeros where a GPU has none. Only the driver's account sees a
// pool that a pair makes for itself.
PoolUse pool_use(const std::vector<int>& gpus);
// Overwrites the pools' unused memory, so that no later allocation finds earlier contents. Waits for the GPUs.
void scrub_pools(const std::vector<int>& gpus);
// Resets the high-water marks to the present use.
void reset_pool_marks(const std::vector<int>& gpus);

}  // namespace aisp::pair
