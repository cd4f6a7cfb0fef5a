// SPDX-License-Identifier: Apache-2.0
#include "pair/launch_limits.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

namespace aisp::pair {

void demand_shared_memory(std::size_t needed, std::size_t available) {
  if (needed <= available) return;
  throw Unsupported{
      fmt::format("needs {} bytes of shared memory for one block, a block of this GPU can have {}", needed, available)};
}

void demand_clusters(unsigned blocks, bool has_clusters) {
  if (has_clusters) return;
  throw Unsupported{
      fmt::format("needs clusters of {} blocks, this GPU launches blocks one by one (clusters begin with sm_90)", blocks)};
}

}  // namespace aisp::pair
