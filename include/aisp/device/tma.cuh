// SPDX-License-Identifier: Apache-2.0
// The Tensor Memory Accelerator (sm_90): one thread starts a copy of a whole tile; the hardware does the addressing. Loads
// complete on an mbarrier that expects their bytes; stores complete by groups of the thread that started them. Data written to
// shared memory by ordinary stores must pass fence_proxy_async before a store reads it.
#pragma once
#include <cuda.h>
#include <aisp/device/arch.cuh>

// On families 12 the assembler warns that multicast is slow: kernels that need it are not meant for them.
#define AISP_MULTICAST (AISP_SM >= 90 && AISP_SM < 120)

namespace aisp::device {

// cp.async.bulk global -> shared: `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier) {
#if AISP_SM >= 90
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
      "l"(global_address(global)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  unsupported_architecture();
#endif
}

// The same into every block of the cluster whose bit is set in `blocks`, at the same place; each block's own barrier at the same
// place counts the bytes that its block receives.
__device__ __forceinline__ void bulk_load_multicast(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier,
                                                    std::uint16_t blocks) {
#if AISP_MULTICAST
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(shared)),
      "l"(global_address(global)), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk shared -> global, in the calling thread's present group. `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global_address(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.reduce.async.bulk shared -> global: adds fp32 values to those in global memory, in L2; in the calling thread's present
// group. Sums from several blocks come in no particular order.
__device__ __forceinline__ void bulk_add_f32(float* global, const void* shared, unsigned bytes) {
#if AISP_SM >= 90
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global_address(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk shared -> shared memory of another block of the cluster. `remote` and `remote_barrier` are addresses from
// remote_address (cluster.cuh) in that block, whose barrier counts the bytes. Multiples of 16.
__device__ __forceinline__ void bulk_copy_to_block(std::uint32_t remote, const void* shared, unsigned bytes,
                                                   std::uint32_t remote_barrier) {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(remote),
               "r"(shared_address(shared)), "r"(bytes), "r"(remote_barrier)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.commit_group: the calling thread's stores since the last commit become a group.
__device__ __forceinline__ void commit_stores() {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.wait_group.read: until at most `pending` groups still read their source, so that shared memory can be written
// again. Shared memory must live until then: a block waits for 0 before it ends.
template <int pending>
__device__ __forceinline__ void wait_stores_read() {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.wait_group: until at most `pending` groups are not yet written.
template <int pending>
__device__ __forceinline__ void wait_stores() {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
#else
  unsupported_architecture();
#endif
}

// prefetch.tensormap: fetches the descriptor, which is a `const __grid_constant__ CUtensorMap` parameter of the kernel (or lies
// in global memory).
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
#if AISP_SM >= 90
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.tensor.2d global -> shared: the box whose first element has the coordinates `x` (fastest) and `y`. Elements
// outside the tensor arrive as zeros and count as bytes, too. `x` must be at a multiple of 16 bytes, otherwise an H200 stops with
// an illegal instruction. `shared` is aligned to 128 bytes (1024 with the 128-byte swizzle).
__device__ __forceinline__ void tensor_load_2d(void* shared, const CUtensorMap* map, int x, int y, std::uint64_t* barrier) {
#if AISP_SM >= 90
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// The same into every block of the cluster whose bit is set in `blocks`.
__device__ __forceinline__ void tensor_load_2d_multicast(void* shared, const CUtensorMap* map, int x, int y,
                                                         std::uint64_t* barrier, std::uint16_t blocks) {
#if AISP_MULTICAST
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], "
      "[%2], "
      "%5;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
      : "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void tensor_load_3d(void* shared, const CUtensorMap* map, int x, int y, int z,
                                               std::uint64_t* barrier) {
#if AISP_SM >= 90
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// The same into every block of the cluster whose bit is set in `blocks`.
__device__ __forceinline__ void tensor_load_3d_multicast(void* shared, const CUtensorMap* map, int x, int y, int z,
                                                         std::uint64_t* barrier, std::uint16_t blocks) {
#if AISP_MULTICAST
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.prefetch.tensor.3d: brings the box into L2 without any completion signal.
__device__ __forceinline__ void tensor_prefetch_3d(const CUtensorMap* map, int x, int y, int z) {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(reinterpret_cast<std::uint64_t>(map)),
               "r"(x), "r"(y), "r"(z)
               : "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void tensor_load_4d(void* shared, const CUtensorMap* map, int x, int y, int z, int w,
                                               std::uint64_t* barrier) {
#if AISP_SM >= 90
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
          "r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.async.bulk.tensor.2d shared -> global, in the calling thread's present group. Elements outside the tensor are not written.
__device__ __forceinline__ void tensor_store_2d(const CUtensorMap* map, int x, int y, const void* shared) {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(shared_address(shared)), "r"(x), "r"(y)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// cp.reduce.async.bulk.tensor.2d shared -> global: adds a box of fp32 to the values there, in L2; otherwise as tensor_store_2d.
// With one addend an element the result is deterministic.
__device__ __forceinline__ void tensor_add_2d(const CUtensorMap* map, int x, int y, const void* shared) {
#if AISP_SM >= 90
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(shared_address(shared)), "r"(x), "r"(y)
               : "memory");
#else
  unsupported_architecture();
#endif
}

__device__ __forceinline__ void tensor_store_4d(const CUtensorMap* map, int x, int y, int z, int w, const void* shared) {
#if AISP_SM >= 90
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(map)),
               "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
