// SPDX-License-Identifier: Apache-2.0
// wgmma (sm_90a): the four warps of an aligned warpgroup multiply a 64-row A by a B of N columns, both read by the tensor core
// from shared memory, asynchronously. PTX ISA, "Asynchronous warpgroup level matrix instructions".
//
// This header has operands in shared memory and the ordering of products. The products themselves are in wgmma_products.cuh.
//
// Order: wgmma_fence() after ordinary accesses to D's registers; the products; wgmma_commit(); wgmma_wait<n>() before D is read.
// Operands that ordinary stores or cp.async wrote pass fence_proxy_async_shared() first; those that TMA wrote do not need it.
//
// D: thread t holds, for each j < N / 8, D[t / 32 * 16 + t % 32 / 4][j * 8 + t % 4 * 2] in d[4 j], the column after it in d[4 j +
// 1], and the same columns 8 rows below in d[4 j + 2] and d[4 j + 3].
#pragma once
#include <aisp/device/arch.cuh>

// Only the code of the architecture-specific target has these instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define AISP_WGMMA 1
#else
#define AISP_WGMMA 0
#endif

namespace aisp::device {

// The direction of an operand's neighbours in memory: along K (A[m][k], B[n][k]) or along M or N (A[k][m], B[k][n]). FP8 supports
// only k.
enum class Major : int { k = 0, mn = 1 };

// An operand in shared memory with the 128-byte swizzle, as TMA writes it with CU_TENSOR_MAP_SWIZZLE_128B: rows of 128 bytes (64
// bf16, 128 e4m3), eight rows in 1024 bytes aligned to 1024, where the 16-byte chunk c of row r lies at c ^ r % 8. Major::k: a
// row is one m or n, groups of eight rows lie `group_bytes` apart; the next 32 bytes of K begin 32 bytes further on. Major::mn: a
// row is one k, 64 of m or n wide; groups of eight k lie `group_bytes` apart, further columns `chunk_bytes`; the next 16 of K
// begin two groups further on.
__device__ __forceinline__ std::uint64_t operand(const void* shared, unsigned group_bytes = 1024, unsigned chunk_bytes = 16) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62;
  const auto field = [](unsigned bytes) { return static_cast<std::uint64_t>((bytes & 0x3FFFF) >> 4); };
  return swizzle_128 | field(group_bytes) << 32 | field(chunk_bytes) << 16 | field(shared_address(shared));
}

// The same operand `bytes` further on.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t operand, unsigned bytes) { return operand + (bytes >> 4); }

// wgmma.fence: orders the warpgroup's accesses to registers (and, once, to shared memory) before its next products.
__device__ __forceinline__ void wgmma_fence() {
#if AISP_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// wgmma.commit_group: the products since the last commit become a group.
__device__ __forceinline__ void wgmma_commit() {
#if AISP_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  unsupported_architecture();
#endif
}

// wgmma.wait_group: until at most `pending` groups are still under way.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#if AISP_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#else
  unsupported_architecture();
#endif
}

// Tells the compiler that D changes here, so that no copy of it is kept over a wait.
template <int count>
__device__ __forceinline__ void wgmma_touch(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int count>
__device__ __forceinline__ void wgmma_touch(int (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

}  // namespace aisp::device
