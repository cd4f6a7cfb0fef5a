// SPDX-License-Identifier: Apache-2.0
// Descriptors of tensors for TMA (aisp/device/tma.cuh). Made on the host, once per buffer, and passed to the kernel as a
// `const __grid_constant__ CUtensorMap`.
#pragma once
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace aisp {

// A tensor whose elements along dimension 0 are neighbours in memory. sizes and box in elements; strides in bytes, those of
// dimensions 1 and up (multiples of 16). With the 128-byte swizzle the box is at most 128 bytes along dimension 0. Elements
// outside are read as zero, or with CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA, for floating-point types only, as NaN.
// Interleaved layouts, such as NC/8HWC8 with CU_TENSOR_MAP_INTERLEAVE_16B, have at least three dimensions.
CUtensorMap tensor_map(CUtensorMapDataType type, const void* device, std::span<const std::uint64_t> sizes,
                       std::span<const std::uint64_t> strides, std::span<const std::uint32_t> box,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                       CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CUtensorMapFloatOOBfill outside = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

// A row-major matrix of `rows` x `columns` elements of `element_bytes`, read in boxes of box_rows x box_columns.
inline CUtensorMap matrix_map(CUtensorMapDataType type, std::size_t element_bytes, const void* device, std::size_t rows,
                              std::size_t columns, unsigned box_rows, unsigned box_columns,
                              CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  const std::uint64_t sizes[] = {columns, rows}, strides[] = {columns * element_bytes};
  const std::uint32_t box[] = {box_columns, box_rows};
  return tensor_map(type, device, sizes, strides, box, swizzle);
}
inline CUtensorMap matrix_map_bf16(const void* device, std::size_t rows, std::size_t columns, unsigned box_rows,
                                   unsigned box_columns) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, device, rows, columns, box_rows, box_columns);
}

}  // namespace aisp
