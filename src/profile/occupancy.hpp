// SPDX-License-Identifier: Apache-2.0
// How many blocks of a kernel an SM holds at a time, from what a launch takes and what the SM has.
#pragma once
#include <cstdint>
#include <string>

namespace aisp::profile {

struct SmLimits {  // of one GPU
  int sm_count = 0;
  int warps = 0;  // at a time, as all of these
  int blocks = 0;
  int registers = 0;
  std::uint64_t shared_bytes = 0;  // the reserved part of each block included
  std::uint64_t reserved_bytes_per_block = 0;
};

SmLimits sm_limits(int cuda_ordinal);

struct LaunchResources {
  int threads_per_block = 0;
  int registers_per_thread = 0;
  std::uint64_t static_shared_bytes = 0;
  std::uint64_t dynamic_shared_bytes = 0;
};

struct Occupancy {
  int blocks = 0;      // an SM holds; 0: the kernel cannot run
  double percent = 0;  // warps of these blocks, of those that the SM can hold
  std::string limit;   // what runs out first: "warps", "blocks", "registers" or "shared memory"
};

// Theoretical: as if there were blocks enough to fill every SM, and without what clusters ask for.
Occupancy occupancy(const LaunchResources& launch, const SmLimits& sm);

}  // namespace aisp::profile
