// SPDX-License-Identifier: Apache-2.0
// Tiles of rows of 128 bf16 in shared memory, for mma.sync (sm_80): how they come there and where the lanes of ldmatrix read. The
// 16-byte chunk c of a row lies at c ^ (row % 8), so that ldmatrix meets no bank twice.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

namespace aisp::ch18::row_tiles {

constexpr int columns = 128, pitch = columns * 2, chunks = pitch / 16;  // bytes and 16-byte chunks of a row

// `rows` rows, each of the block's threads a chunk of some of them; those from `valid` on are not there and become zeros.
template <int rows, int threads>
__device__ __forceinline__ void copy(unsigned char* shared, const __nv_bfloat16* from, int valid) {
  const int t = static_cast<int>(threadIdx.x), row = t / chunks, chunk = t % chunks;
#pragma unroll
  for (int i = 0; i < rows; i += threads / chunks) {
    const bool is_valid = row + i < valid;
    device::copy_async_16_or_zero(shared + (row + i) * pitch + (chunk ^ row % 8) * 16,
                                  from + (is_valid ? (row + i) * columns + chunk * 8 : 0), is_valid);
  }
}

// 16 rows times two chunks, and two groups of eight rows times two chunks, for operands that lie along their columns.
__device__ __forceinline__ unsigned lanes_by_rows() {
  const unsigned lane = threadIdx.x % 32;
  return lane % 16 * pitch + (lane / 16 ^ lane % 8) * 16;
}
__device__ __forceinline__ unsigned lanes_by_columns() {
  const unsigned lane = threadIdx.x % 32;
  return (lane / 16 * 8 + lane % 8) * pitch + (lane / 8 % 2 ^ lane % 8) * 16;
}

}  // namespace aisp::ch18::row_tiles
