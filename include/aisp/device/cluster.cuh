// SPDX-License-Identifier: Apache-2.0
// Thread block clusters (sm_90): blocks that run at the same time, synchronise, and reach each other's shared memory (DSMEM). No
// block may end while another can still reach its shared memory: such kernels end with cluster_sync.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// %cluster_ctarank: this block's number in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
#if AISP_SM >= 90
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
  unsupported_architecture();
#endif
  return rank;
}

// %cluster_nctarank: blocks in the cluster; 1 for a kernel launched without clusters.
__device__ __forceinline__ unsigned cluster_size() {
  unsigned size = 1;
#if AISP_SM >= 90
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#else
  unsupported_architecture();
#endif
  return size;
}

// barrier.cluster.arrive (release): every thread of the cluster arrives once, then waits once.
__device__ __forceinline__ void cluster_arrive() {
#if AISP_SM >= 90
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// Without the release: for barriers that publish nothing, such as "all blocks have started" or "no block reads mine any more".
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if AISP_SM >= 90
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// barrier.cluster.wait (acquire)
__device__ __forceinline__ void cluster_wait() {
#if AISP_SM >= 90
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// mapa.shared::cluster: the address that corresponds to `local` in the shared memory of block `rank`. Its cost is negligible.
__device__ __forceinline__ std::uint32_t remote_address(const void* local, unsigned rank) {
  std::uint32_t remote = 0;
#if AISP_SM >= 90
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(local)), "r"(rank));
#else
  unsupported_architecture();
#endif
  return remote;
}

// mapa on generic addresses: an ordinary pointer into the shared memory of block `rank`.
template <class T>
__device__ __forceinline__ T* remote_pointer(T* local, unsigned rank) {
  std::uint64_t remote = 0;
#if AISP_SM >= 90
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(reinterpret_cast<std::uint64_t>(local)), "r"(rank));
#else
  unsupported_architecture();
#endif
  return reinterpret_cast<T*>(remote);
}

// ld.shared::cluster and st.shared::cluster on addresses from remote_address.
__device__ __forceinline__ float load_remote_f32(std::uint32_t address) {
  float value = 0;
#if AISP_SM >= 90
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#else
  unsupported_architecture();
#endif
  return value;
}

__device__ __forceinline__ std::uint32_t load_remote_u32(std::uint32_t address) {
  std::uint32_t value = 0;
#if AISP_SM >= 90
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
#else
  unsupported_architecture();
#endif
  return value;
}

__device__ __forceinline__ float4 load_remote_f32x4(std::uint32_t address) {
  float4 value{};
#if AISP_SM >= 90
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
#else
  unsupported_architecture();
#endif
  return value;
}

__device__ __forceinline__ void store_remote_f32(std::uint32_t address, float value) {
#if AISP_SM >= 90
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void store_remote_u32(std::uint32_t address, std::uint32_t value) {
#if AISP_SM >= 90
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
#else
  unsupported_architecture();
#endif
}

// st.async: a store that reports its 4 (or 16) bytes to a barrier of the same block as its destination. Both addresses come from
// remote_address with the same rank; that block expects the bytes (barrier_arrive_expect) and waits with barrier_wait_cluster.
__device__ __forceinline__ void store_async_f32(std::uint32_t address, float value, std::uint32_t remote_barrier) {
#if AISP_SM >= 90
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(value),
               "r"(remote_barrier)
               : "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void store_async_f32x4(std::uint32_t address, float4 value, std::uint32_t remote_barrier) {
#if AISP_SM >= 90
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
               : "memory");
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
