// SPDX-License-Identifier: Apache-2.0
// cp.async (sm_80): copies from global to shared memory that pass no registers and do not block. Each thread's copies form groups
// in the order they were committed. A wait covers the calling thread's copies only: before other threads read the data, it takes
// a __syncthreads.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// cp.async.cg ... 16: past L1. Both addresses must be aligned to 16 bytes.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global_address(global)) : "memory");
}

// The same with a source size: when `valid` is false nothing is read and 16 zero bytes are written. `global` must still be an
// address in global memory, so point it at any valid one.
__device__ __forceinline__ void copy_async_16_or_zero(void* shared, const void* global, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global_address(global)),
               "r"(source_bytes)
               : "memory");
}

// cp.async.ca with 4, 8 or 16 bytes: through L1; both addresses aligned to `bytes`.
template <int bytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global_address(global)), "n"(bytes)
               : "memory");
}

// cp.async.commit_group: the calling thread's copies since the last commit become a group (an empty one counts too).
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// cp.async.wait_group: until at most `pending` of the youngest groups are still under way.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// cp.async.mbarrier.arrive.noinc: the barrier gets one arrival when all earlier copies of this thread have landed. That arrival
// must be part of the count the barrier was initialised with.
__device__ __forceinline__ void arrive_when_copied(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace aisp::device
