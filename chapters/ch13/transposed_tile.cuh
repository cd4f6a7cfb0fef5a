// SPDX-License-Identifier: Apache-2.0
// Codes of a byte go to memory transposed, through a tile in shared memory: for kernels that write a matrix both ways.
#pragma once
#include <aisp/device/arch.cuh>

#include <cstddef>

#include "rows.cuh"

namespace aisp::ch13 {

using shared::packet;
inline constexpr unsigned transposing_threads = 256, transposed_tile = 128;

// A thread has 8 x 8 elements of a tile; 8 x 4 threads are a warp.
struct TilePlace {
  unsigned across = threadIdx.x % 8 + threadIdx.x / 32 % 2 * 8, down = threadIdx.x % 32 / 8 + threadIdx.x / 64 * 4;
};

// By columns: 16 bytes of column c lie at their number ^ (c / 8) % 8, so that neither writes nor reads meet in a bank.
using TransposedTile = uint2[transposed_tile][transposed_tile / packet];

// Eight rows of a column.
__device__ __forceinline__ void put_column(TransposedTile& tile, const TilePlace& at, unsigned column, uint2 codes) {
  tile[at.across * packet + column][at.down ^ at.across % 8 * 2] = codes;
}

// A matrix with so many rows and columns, multiples of 16; of the transposed one, rows begin `pitch` bytes apart.
struct TransposedShape {
  unsigned rows, columns, pitch;
};

// After a __syncthreads.
__device__ __forceinline__ void store_transposed(const TransposedTile& tile, unsigned top, unsigned left,
                                                 const TransposedShape& shape, unsigned char* __restrict__ to) {
#pragma unroll
  for (unsigned k = 0; k < transposed_tile / 32; ++k) {
    const unsigned c = k * 32 + threadIdx.x / 8, of_rows = threadIdx.x % 8;  // in 16 bytes
    if (left + c < shape.columns && top + of_rows * 16 < shape.rows)
      *reinterpret_cast<uint4*>(to + std::size_t{left + c} * shape.pitch + top + of_rows * 16) =
          reinterpret_cast<const uint4*>(tile[c])[of_rows ^ c / packet % 8];
  }
}

// Eight rows of eight codes to eight columns.
__device__ __forceinline__ void put_transposed(TransposedTile& tile, const TilePlace& at, const uint2 (&rows)[packet]) {
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    unsigned columns[2][4];  // of the upper four rows and of the lower ones
#pragma unroll
    for (unsigned lower = 0; lower < 2; ++lower) {
      const auto word = [&](unsigned r) { return half == 0 ? rows[lower * 4 + r].x : rows[lower * 4 + r].y; };
      const unsigned low_01 = __byte_perm(word(0), word(1), 0x5140), low_23 = __byte_perm(word(2), word(3), 0x5140);
      const unsigned high_01 = __byte_perm(word(0), word(1), 0x7362), high_23 = __byte_perm(word(2), word(3), 0x7362);
      columns[lower][0] = __byte_perm(low_01, low_23, 0x5410);
      columns[lower][1] = __byte_perm(low_01, low_23, 0x7632);
      columns[lower][2] = __byte_perm(high_01, high_23, 0x5410);
      columns[lower][3] = __byte_perm(high_01, high_23, 0x7632);
    }
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) put_column(tile, at, half * 4 + c, make_uint2(columns[0][c], columns[1][c]));
  }
}

// Blocks are tiles, row by row; a thread has 8 x 8 elements.
struct TileOfBlock {
  TilePlace at;
  unsigned top, left, row, column;
  __device__ __forceinline__ explicit TileOfBlock(const TransposedShape& shape) {
    const unsigned across = (shape.columns + transposed_tile - 1) / transposed_tile;
    top = blockIdx.x / across * transposed_tile;
    left = blockIdx.x % across * transposed_tile;
    row = top + at.down * packet;
    column = left + at.across * packet;
  }
  __device__ __forceinline__ bool exists(const TransposedShape& shape) const {
    return row < shape.rows && column < shape.columns;
  }
};
__device__ __forceinline__ void store_columns(TransposedTile& tile, const TileOfBlock& of, const uint2 (&rows)[packet],
                                              const TransposedShape& shape, unsigned char* to) {
  put_transposed(tile, of.at, rows);
  __syncthreads();
  store_transposed(tile, of.top, of.left, shape, to);
}

}  // namespace aisp::ch13
