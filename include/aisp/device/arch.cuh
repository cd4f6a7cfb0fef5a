// SPDX-License-Identifier: Apache-2.0
// Shared by all wrappers: the architecture that is being compiled for, and addresses in shared memory.
#pragma once
#include <cuda_runtime.h>
#include <cstdint>

// Compute capability times ten of the present device pass; 0 in the host pass.
#ifdef __CUDA_ARCH__
#define AISP_SM (__CUDA_ARCH__ / 10)
#else
#define AISP_SM 0
#endif

namespace aisp::device {

// Ends the kernel with an error; replaces an instruction on architectures that lack it. Needs skip such a variant before it is
// launched, so its code only has to compile there.
__device__ __forceinline__ void unsupported_architecture() { __trap(); }

// The 32-bit address that shared-memory instructions take. In a cluster it names the calling block's own shared memory.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same in the global state space; needed where an instruction takes no generic addresses.
__device__ __forceinline__ std::uint64_t global_address(const void* pointer) {
  return static_cast<std::uint64_t>(__cvta_generic_to_global(pointer));
}

__device__ __forceinline__ unsigned lane_index() {
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace aisp::device
