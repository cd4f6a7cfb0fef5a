// SPDX-License-Identifier: Apache-2.0
// Order between memory accesses: proxies, scopes, flags between blocks, and dependent launches.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// fence.proxy.async (sm_90): ordinary writes before it are seen by the asynchronous proxy (TMA, wgmma) afterwards. Every writing
// thread fences first, then the threads synchronise, then one of them starts the TMA store.
__device__ __forceinline__ void fence_proxy_async() {
#if AISP_SM >= 90
  asm volatile("fence.proxy.async;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// The same for shared memory alone.
__device__ __forceinline__ void fence_proxy_async_shared() {
#if AISP_SM >= 90
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void fence_cluster() {
#if AISP_SM >= 90
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// ld.acquire and st.release on 32-bit flags in global memory: writes before the store are seen after a load that reads its value.
__device__ __forceinline__ unsigned load_acquire_gpu(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(flag)) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_gpu(unsigned* flag, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(global_address(flag)), "r"(value) : "memory");
}
// Between GPUs, or with the CPU.
__device__ __forceinline__ unsigned load_acquire_system(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(flag)) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_system(unsigned* flag, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(global_address(flag)), "r"(value) : "memory");
}
// red.release: an arrival that publishes this thread's earlier writes.
__device__ __forceinline__ void add_release_gpu(unsigned* counter, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global_address(counter)), "r"(value) : "memory");
}

// griddepcontrol.launch_dependents (sm_90): the next kernel of the stream may start when all blocks have executed this or ended,
// if it was launched with programmatic stream serialization.
__device__ __forceinline__ void let_dependents_start() {
#if AISP_SM >= 90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// griddepcontrol.wait: until the kernels before this one have completed and their writes can be seen. Nothing that they write may
// be read, and nothing that they read may be written, before it. Returns at once in a kernel that was launched without that
// attribute.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if AISP_SM >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
