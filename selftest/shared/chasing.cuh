// SPDX-License-Identifier: Apache-2.0
// A baseline that depends on its L1 cache: few threads, each of whose loads waits for the one before. Each family has a number
// and so a kernel of its own, whose attributes are its own too.
#pragma once
#include "doubling.cuh"

namespace aisp::selftest {

inline constexpr unsigned chased_words = 32 * 1024, chase_steps = 1024;  // a table of 128 KiB

template <int family>
__global__ void chase_kernel(const unsigned* table, unsigned* last) {
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned step = 0; step < chase_steps; ++step) at = (at * 5 + 1 + table[at % chased_words]) * 2654435761u >> 7;
  last[blockIdx.x * blockDim.x + threadIdx.x] = at;
}

template <int family>
class Chasing : public GpuDoubling {
 public:
  explicit Chasing(Setup& setup)
      : GpuDoubling{setup}, table_{chased_words * sizeof(unsigned)}, last_{grid_blocks * threads * sizeof(unsigned)} {
    check(cudaMemset(table_.get<void>(), 0, chased_words * sizeof(unsigned)));
  }
  void chases(Launch& launch) {
    chase_kernel<family><<<grid_blocks, threads, 0, launch.stream>>>(table_.get<unsigned>(), last_.get<unsigned>());
    doubled(launch);
  }

 protected:
  static void leave_little_cache() {
    check(cudaFuncSetAttribute(chase_kernel<family>, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  }

 private:
  static constexpr unsigned grid_blocks = 128, threads = 64;
  OwnMemory table_, last_;
};

}  // namespace aisp::selftest
