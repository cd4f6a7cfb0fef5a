// SPDX-License-Identifier: Apache-2.0
// For blocks whose warps have different jobs: registers given from one warpgroup to another, and barriers for some of the
// threads.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// setmaxnreg (sm_90a): all warps of the warpgroup execute it; `registers` is a multiple of 8 from 24 to 256. Registers that one
// warpgroup gives up another can take; taking waits until there are enough. The kernel is compiled for a fixed number of
// registers (__launch_bounds__).
template <int registers>
__device__ __forceinline__ void give_up_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#else
  unsupported_architecture();
#endif
}
template <int registers>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#else
  unsupported_architecture();
#endif
}

// bar.sync: barrier `id` (1 to 15; 0 is __syncthreads) for `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// bar.arrive: arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace aisp::device
