// SPDX-License-Identifier: Apache-2.0
// How tall_skinny_gram cuts G in tiles, and how a chunk of X lies in shared memory.
#pragma once
#include <cstddef>

namespace aisp::ch09::gram {

inline constexpr int threads = 256, stages = 3;
inline constexpr int chunk_bytes = 32 << 10;  // rows that a block copies at a time
inline constexpr int shared_bytes = stages * chunk_bytes;
inline constexpr int step = 8;                // rows of one tensor core instruction
inline constexpr int rows_between_sums = 64;  // that the tensor cores add up before fp32 registers take over
inline constexpr int tile_size = 16 * 8;      // sums of one tensor core instruction
inline constexpr int whole_block = 15;        // a barrier after those of the groups

enum class Units { fma, tf32, tf32_three_times };

// G is cut in tiles of 16 x 8, of which those below the diagonal and on it are computed. A warp has sums of all tiles for rows of
// its own; with 128 columns, whose sums are too many for that, four warps have the same rows and two of the eight rows of tiles
// each.
template <int columns>
struct Shape {
  static constexpr int tile_rows = columns / 16, tile_columns = columns / 8, tiles = tile_rows * (tile_rows + 1);
  static constexpr int warps = columns > 64 ? 4 : 1;  // with the same rows: a group
  static constexpr int groups = threads / 32 / warps;
  static constexpr int row_bytes = columns * 4, row_chunks = columns / 4;  // chunks of 16 bytes
  static constexpr int group_bytes = chunk_bytes / groups, chunk_rows = group_bytes / row_bytes;
  static constexpr int chunks_between_sums = rows_between_sums / chunk_rows;
  static constexpr int sums = tiles * tile_size;  // of one group

  static constexpr bool has(int warp, int tile_row) { return warps == 1 || tile_row == warp || tile_row == tile_rows - 1 - warp; }
  static constexpr int tiles_of(int warp) {
    int count = 0;
    for (int i = 0; i < tile_rows; ++i)
      if (has(warp, i)) count += 2 * i + 2;
    return count;
  }
};

// Element e of the columns' tile j is this column of X. What a thread loads at once is, for FMA units, one element of four tiles,
// and for tensor cores one of two: with the same of another row these are the four registers of a left fragment.
template <Units units>
__host__ __device__ constexpr int column_of(int tile, int element) {
  return units == Units::fma ? tile / 4 * 32 + element * 4 + tile % 4 : tile / 2 * 16 + element * 2 + tile % 2;
}
__host__ __device__ constexpr int tile_number(int i, int j) { return i * (i + 1) + j; }

// Tensor cores ignore the last 13 bits of a value, which cuts it off. Half a unit of what is left makes them round it, to the
// nearest as cvt.rna.tf32 does, which is four instructions. In two parts a value needs no rounding: the second part has the rest.
inline constexpr unsigned half_unit = 0x1000;

// The compiler must not know these. It would see that two registers hold the same, as far as tensor cores look at them, keep one,
// and move it to where the next instruction wants it, time and again.
static __constant__ unsigned kept_bits = 0xFFFFE000;
static __constant__ float minus_one = -1;

// mma.m16n8k8, sum += A B in TF32. Lane l holds, of A, column l % 4 of the rows l / 4 (a0) and l / 4 + 8 (a1), and column l % 4 +
// 4 of both (a2, a3); of B, column l / 4 of the rows l % 4 (b0) and l % 4 + 4 (b1); sums as mma_bf16 has them.
__device__ inline void mma_tf32(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Row r of a chunk has its 16-byte chunk c at c ^ r % 4 * 2, so that four rows' chunks 2 c and 2 c + 1 lie in different banks.
__device__ constexpr int place(int row, int c) { return c ^ row % 4 * 2; }

template <class T>
__device__ T load(const unsigned char* from) {
  return *reinterpret_cast<const T*>(from);
}

}  // namespace aisp::ch09::gram
