// SPDX-License-Identifier: Apache-2.0
// 8 x 8 matrices of 16-bit elements between shared memory and the fragments of tensor core instructions, and the product of such
// fragments. In a fragment lane l holds the elements (l / 4, l % 4 * 2) and its right neighbour, in the lower and upper half of a
// word.
#pragma once
#include <aisp/device/arch.cuh>

#include <cuda_bf16.h>

namespace aisp::device {

// ldmatrix.x4: four matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
// Each of them transposed on the way.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// stmatrix.x4 (sm_90): four matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t address, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
#if AISP_SM >= 90
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m0), "r"(m1), "r"(m2),
               "r"(m3)
               : "memory");
#else
  unsupported_architecture();
#endif
}

// movmatrix.trans (sm_75): one matrix transposed between the lanes' registers.
__device__ __forceinline__ unsigned transpose_matrix(unsigned m) {
  unsigned transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(m));
  return transposed;
}

// mma.m16n8k16, by one warp: sum += A B with A of 16 x 16 and B of 16 x 8 in bf16, sums in fp32. Lane l holds, of A, the two
// words at column l % 4 * 2 of the rows l / 4 (a[0]) and l / 4 + 8 (a[1]), and the same eight columns to the right (a[2], a[3]):
// what load_matrices gives for a row-major A; of B, in column l / 4, the pair from row l % 4 * 2 on (b0) and the pair eight rows
// below (b1): what load_matrices_transposed gives for a row-major B; of the sums, the columns l % 4 * 2 and the next of the rows
// l / 4 (sum[0], sum[1]) and l / 4 + 8 (sum[2], sum[3]).
__device__ __forceinline__ void mma_bf16(float* sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for f16. Subnormals are not flushed.
__device__ __forceinline__ void mma_f16(float* sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two fp32 as bf16 in one word, the first in the lower half.
__device__ __forceinline__ unsigned narrow_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}

// cvt.e4m3x2 (sm_89): two fp32 as e4m3 in the lower two bytes of a word, the first in the lowest; larger values saturate to 448.
__device__ __forceinline__ unsigned narrow_e4m3(float low, float high) {
#if AISP_SM >= 89
  std::uint16_t both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
#else
  unsupported_architecture();
  return 0;
#endif
}

// cvt.f16x2.e4m3x2 (sm_89): the two e4m3 in the lower bytes of `pair` as f16, the lowest in the lower half; exact.
__device__ __forceinline__ unsigned widen_e4m3(unsigned pair) {
#if AISP_SM >= 89
  unsigned both;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(static_cast<std::uint16_t>(pair)));
  return both;
#else
  unsupported_architecture();
  return 0;
#endif
}

// Two fp32 as f16 in one word, the first in the lower half.
__device__ __forceinline__ unsigned narrow_f16(float low, float high) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

}  // namespace aisp::device
