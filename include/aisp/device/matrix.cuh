// SPDX-License-Identifier: Apache-2.0
// 8 x 8 matrices of 16-bit elements between shared memory and the fragments of tensor core instructions: in a fragment lane l
// holds the elements (l / 4, l % 4 * 2) and its right neighbour, in the lower and upper half of a word.
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

// Two fp32 as bf16 in one word, the first in the lower half.
__device__ __forceinline__ unsigned narrow_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}

}  // namespace aisp::device
