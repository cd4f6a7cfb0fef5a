// SPDX-License-Identifier: Apache-2.0
// TMA loads for a pair of blocks (ranks 2 i and 2 i + 1 of a cluster) that multiply together by tcgen05: a block loads into its
// own shared memory, and the bytes are counted by a barrier of either block of the pair. Compiled, but not run yet.
#pragma once
#include <cuda.h>
#include <aisp/device/tcgen05.cuh>

namespace aisp::device {

// cp.async.bulk.tensor with .cta_group::2: `barrier` is an address from remote_address (cluster.cuh).
__device__ __forceinline__ void tensor_load_2d_pair(void* shared, const CUtensorMap* map, int x, int y, std::uint32_t barrier) {
#if AISP_TCGEN05
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(x), "r"(y)
      : "memory");
#else
  unsupported_architecture();
#endif
}
__device__ __forceinline__ void tensor_load_3d_pair(void* shared, const CUtensorMap* map, int x, int y, int z,
                                                    std::uint32_t barrier) {
#if AISP_TCGEN05
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
