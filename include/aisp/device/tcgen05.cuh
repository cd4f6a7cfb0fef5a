// SPDX-License-Identifier: Apache-2.0
// tcgen05 (sm_100a, sm_103a, sm_110a): the fifth generation of tensor cores. One thread starts a product for the whole block, or
// for a pair of blocks; both operands lie in shared memory, the sums in tensor memory (TMEM), where warps fetch them. PTX ISA,
// "TensorCore 5th Generation Family Instructions". Compiled for these targets, but not run yet on such a GPU.
//
// Tensor memory: 128 lanes of 512 columns of 32 bits for each SM. An address has the lane in bits 31-16 and the column in bits
// 15-0. Columns are allocated, all lanes of them. Warp w of a block reaches the lanes 32 (w % 4) to 32 (w % 4) + 31 only.
//
// Order: products of one thread into the same sums follow each other; everything else is asynchronous. tensor_commit makes a
// barrier complete when the thread's products so far are done. If threads hand tensor memory to each other, the first calls
// tensor_fence_before before the barrier, the other tensor_fence_after after it. Operands that ordinary stores wrote pass
// fence_proxy_async_shared first; those that TMA wrote do not need it.
#pragma once
#include <aisp/device/arch.cuh>
#include <aisp/device/tcgen05_descriptors.hpp>
#include <aisp/device/wgmma.cuh>

// Only architecture-specific and family-specific code has these instructions; families 12 have none.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define AISP_TCGEN05 \
  (__CUDA_ARCH_FAMILY_SPECIFIC__ == 1000 || __CUDA_ARCH_FAMILY_SPECIFIC__ == 1030 || __CUDA_ARCH_FAMILY_SPECIFIC__ == 1100)
#else
#define AISP_TCGEN05 0
#endif

namespace aisp::device {

constexpr int tensor_lanes = 128, tensor_columns = 512;

// An operand in shared memory with the 128-byte swizzle, laid out as operand() in wgmma.cuh says; advance() moves it along K.
__device__ __forceinline__ std::uint64_t tensor_operand(const void* shared, unsigned group_bytes = 1024,
                                                        unsigned chunk_bytes = 16) {
  return tensor_operand_at(shared_address(shared), group_bytes, chunk_bytes);
}

// elect.sync: true in one thread of the warp, all of which call it. The compiler knows that what follows is done by one thread.
__device__ __forceinline__ bool elect_thread() {
#if AISP_SM >= 90
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected)::"memory");
  return elected != 0;
#else
  return lane_index() == 0;
#endif
}

// tcgen05.alloc: by a whole warp (of each block of a pair): columns, a power of two from 32 to 512; their address is written to
// shared memory. Waits while another block of the SM has too many.
template <int blocks = 1>
__device__ __forceinline__ void tensor_allocate(std::uint32_t* address, unsigned columns) {
#if AISP_TCGEN05
  if constexpr (blocks == 1)
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(address)), "r"(columns)
                 : "memory");
  else
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(address)), "r"(columns)
                 : "memory");
#else
  unsupported_architecture();
#endif
}

// tcgen05.relinquish_alloc_permit: this block will not allocate again, so that others need not wait for it.
template <int blocks = 1>
__device__ __forceinline__ void tensor_allocate_no_more() {
#if AISP_TCGEN05
  if constexpr (blocks == 1) asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  else asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// tcgen05.dealloc: by the warp that allocated, before the kernel ends, when no thread (of the pair) uses the columns any more.
template <int blocks = 1>
__device__ __forceinline__ void tensor_free(std::uint32_t address, unsigned columns) {
#if AISP_TCGEN05
  if constexpr (blocks == 1)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
  else asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
#else
  unsupported_architecture();
#endif
}

// tcgen05.fence::before_thread_sync and ::after_thread_sync.
__device__ __forceinline__ void tensor_fence_before() {
#if AISP_TCGEN05
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
#else
  unsupported_architecture();
#endif
}
__device__ __forceinline__ void tensor_fence_after() {
#if AISP_TCGEN05
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// tcgen05.mma: D = A B (+ D where `add`). By one thread; of a pair, by one thread of the even block for both: descriptors and the
// address in tensor memory then hold for each block's own memory.
template <TensorKind kind, int blocks = 1>
__device__ __forceinline__ void tensor_multiply(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction,
                                                bool add) {
#if AISP_TCGEN05
#define AISP_TENSOR_MULTIPLY(variant)                              \
  asm volatile(                                                    \
      "{\n"                                                        \
      ".reg .pred add;\n"                                          \
      "setp.ne.b32 add, %4, 0;\n"                                  \
      "tcgen05.mma." variant                                       \
      " [%0], %1, %2, %3, add;\n"                                  \
      "}\n" ::"r"(d),                                              \
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(add)) \
      : "memory")
  if constexpr (kind == TensorKind::bf16 && blocks == 1) AISP_TENSOR_MULTIPLY("cta_group::1.kind::f16");
  if constexpr (kind == TensorKind::bf16 && blocks == 2) AISP_TENSOR_MULTIPLY("cta_group::2.kind::f16");
  if constexpr (kind == TensorKind::e4m3 && blocks == 1) AISP_TENSOR_MULTIPLY("cta_group::1.kind::f8f6f4");
  if constexpr (kind == TensorKind::e4m3 && blocks == 2) AISP_TENSOR_MULTIPLY("cta_group::2.kind::f8f6f4");
#undef AISP_TENSOR_MULTIPLY
#else
  unsupported_architecture();
#endif
}

// tcgen05.commit: one arrival at the barrier when all products that this thread has started are done, and with them their reads
// of shared memory.
__device__ __forceinline__ void tensor_commit(std::uint64_t* barrier) {
#if AISP_TCGEN05
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#else
  unsupported_architecture();
#endif
}
// The same for products of a pair, at the barrier of the same place in every block of the cluster whose bit is set.
__device__ __forceinline__ void tensor_commit_pair(std::uint64_t* barrier, std::uint16_t blocks) {
#if AISP_TCGEN05
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "h"(blocks)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// tcgen05.ld.32x32b.x32: thread l of the warp gets 32 columns of the l-th lane that it reaches; `address` has the first of these
// lanes. The values may be used after tensor_wait_loaded.
__device__ __forceinline__ void tensor_load(float (&v)[32], std::uint32_t address) {
#if AISP_TCGEN05
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]), "=f"(v[8]), "=f"(v[9]),
        "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]), "=f"(v[16]), "=f"(v[17]), "=f"(v[18]),
        "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]),
        "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
      : "r"(address)
      : "memory");
#else
  for (float& x : v) x = static_cast<float>(address);
  unsupported_architecture();
#endif
}

// tcgen05.wait::ld: until this thread's loads are done. The asm operands tell the compiler that the values change here.
template <int count>
__device__ __forceinline__ void tensor_touch(float (&v)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(v[i])::"memory");
}
template <class... Loaded>
__device__ __forceinline__ void tensor_wait_loaded(Loaded&... loaded) {
#if AISP_TCGEN05
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  (tensor_touch(loaded), ...);
#else
  unsupported_architecture();
#endif
}

// tcgen05.st.32x32b.x32 and tcgen05.wait::st: the other way.
__device__ __forceinline__ void tensor_store(std::uint32_t address, const float (&v)[32]) {
#if AISP_TCGEN05
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31};" ::"f"(v[0]),
      "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]), "f"(v[8]), "f"(v[9]), "f"(v[10]), "f"(v[11]),
      "f"(v[12]), "f"(v[13]), "f"(v[14]), "f"(v[15]), "f"(v[16]), "f"(v[17]), "f"(v[18]), "f"(v[19]), "f"(v[20]), "f"(v[21]),
      "f"(v[22]), "f"(v[23]), "f"(v[24]), "f"(v[25]), "f"(v[26]), "f"(v[27]), "f"(v[28]), "f"(v[29]), "f"(v[30]), "f"(v[31]),
      "r"(address)
      : "memory");
#else
  unsupported_architecture();
#endif
}
__device__ __forceinline__ void tensor_wait_stored() {
#if AISP_TCGEN05
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

}  // namespace aisp::device
