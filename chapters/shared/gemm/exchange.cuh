// SPDX-License-Identifier: Apache-2.0
// Epilogues that read another matrix of C's shape and may add up columns. With the store TmaExchange a warp has boxes for all of
// its rows of a tile: TMA fills them with the other matrix while the tile is being multiplied, the epilogue reads them in the
// order of its sums, and results take their place. Such an epilogue is an object with
//   static constexpr int narrowing = 1;
//   template <int columns> using Kept = ...;
//     what a thread keeps from one 64 rows of a tile to the next, as ColumnSums or Nothing; made anew for each tile
//   template <int count, class Other>
//   __device__ void operator()(float (&sums)[count], const Fragment& at, const Other& other, Kept<count * 2>& kept) const;
//     for 64 rows at a time; other.load(i, values) gives what belongs to sums[i] to sums[i + 7]
//   template <int columns> __device__ void end_tile(Kept<columns>& kept, const Fragment& at, const Meeting& meeting) const;
//     after the last of them, by all threads of the warpgroup; `at` is of the warpgroup's first rows
#pragma once
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/warpgroup.cuh>

#include "store.cuh"

namespace aisp::gemm {

struct Nothing {};

// A warp's part of the other matrix for 64 rows of a tile: 16 rows by `columns`.
template <int columns>
struct OtherRows {
  static constexpr int width = TmaStore<bf16>::box_columns<columns>, row_bytes = width * sizeof(bf16);
  std::uint32_t boxes;

  // i: a multiple of eight; they are 16 columns.
  __device__ __forceinline__ void load(int i, float (&values)[8]) const {
    const unsigned row = device::lane_index() % 16, chunk = device::lane_index() / 16 ^ detail::swizzle<row_bytes>(row);
    const unsigned pair = static_cast<unsigned>(i) / 8, box = pair / (width / 16), in_box = pair % (width / 16);
    unsigned words[4];
    device::load_matrices(words, boxes + (box * TmaStore<bf16>::box_rows + row) * row_bytes + (chunk ^ 2 * in_box) * 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[2 * j] = __uint_as_float(words[j] << 16);
      values[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
    }
  }
};

// The shared memory through which the four warps of a warpgroup exchange sums at the end of a tile: each has as much shared
// memory as [8][columns] floats take, at of_first + warp * stride. It is the warps' boxes of the last 64 rows, after they were
// read and before results take them.
struct Meeting {
  float* of_first;
  unsigned stride;  // floats
  int barrier;

  __device__ __forceinline__ float* of_warp(unsigned warp) const { return of_first + warp * stride; }
  __device__ __forceinline__ void sync() const { device::named_barrier_sync(barrier, 128); }
};

// The sums of a tile's columns over the rows of a warpgroup, added up in an order that is always the same.
template <int columns>
struct ColumnSums {
  static_assert(columns % 64 == 0, "groups of eight columns change places with seven others");
  float sums[columns / 4]{};  // of two neighbouring columns in each group of eight

  __device__ __forceinline__ void add(const float (&of)[columns / 2]) {
#pragma unroll
    for (int i = 0; i < columns / 4; ++i) sums[i] += of[i / 2 * 4 + i % 2] + of[i / 2 * 4 + i % 2 + 2];
  }

  // A row as wide as C gets them, row[column], or none where that is null; rows that do not exist must have added zeros. A warp
  // leaves what its eight quads of lanes have, and then each thread adds up a column. Groups of columns lie at group ^ quad, so
  // that neither the writes nor the reads meet in a bank.
  __device__ __forceinline__ void store(float* row, const Fragment& at, const Meeting& meeting) const {
    const unsigned thread = threadIdx.x % 128, quad = thread % 32 / 4, in_quad = thread % 4;
    float* const own = meeting.of_warp(thread / 32) + quad * columns + in_quad * 2;
#pragma unroll
    for (unsigned group = 0; group < columns / 8; ++group)
      *reinterpret_cast<float2*>(own + (group ^ quad) * 8) = make_float2(sums[2 * group], sums[2 * group + 1]);
    meeting.sync();
    for (unsigned column = thread; column < columns; column += 128) {
      float of_warps[4];
#pragma unroll
      for (unsigned warp = 0; warp < 4; ++warp) {
        const float* const from = meeting.of_warp(warp) + column % 8;
        of_warps[warp] = 0;
#pragma unroll
        for (unsigned q = 0; q < 8; ++q) of_warps[warp] += from[q * columns + (column / 8 ^ q) * 8];
      }
      if (row != nullptr && at.first_column + static_cast<int>(column) < at.column_end)
        row[at.first_column + column] = of_warps[0] + of_warps[1] + (of_warps[2] + of_warps[3]);
    }
    meeting.sync();  // the boxes are free again
  }
};

// By TMA, from boxes that another matrix was in. Each warp waits for its own boxes alone, and has them filled again when its
// stores have read them.
struct TmaExchange {
  using Element = bf16;
  using Boxes = TmaStore<bf16>;
  static constexpr bool predicated = false, any_width = false;
  static constexpr int box_rows = Boxes::box_rows;
  template <int columns>
  static constexpr int box_columns = Boxes::box_columns<columns>;
  // For each 64 rows.
  template <int columns>
  static constexpr unsigned staging_bytes = sizeof(bf16[box_rows][columns]);

  // By one lane, before it fetches what `parts` times 64 rows need; its earlier stores are read by then.
  template <int columns, int parts>
  static __device__ __forceinline__ void expect(std::uint64_t* barrier) {
    device::wait_stores_read<0>();
    device::barrier_arrive_expect(barrier, parts * staging_bytes<columns>);
  }
  // For 64 rows, by the same lane.
  template <int columns>
  static __device__ __forceinline__ void fetch(const Fragment& at, unsigned char* staging, const CUtensorMap& other,
                                               std::uint64_t* barrier) {
    constexpr int width = box_columns<columns>;
#pragma unroll
    for (int box = 0; box < columns / width; ++box)
      device::tensor_load_2d(staging + box * (box_rows * width * sizeof(bf16)), &other, at.first_column + box * width,
                             at.first_row, barrier);
  }

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char* staging,
                                      const CUtensorMap& c) const {
    constexpr int columns = count * 2, width = box_columns<columns>;
#pragma unroll
    for (int box = 0; box < columns / width; ++box) {
      unsigned char* const to = staging + box * (box_rows * width * sizeof(bf16));
      detail::stage_box<bf16, width>(sums, box * (width / 2), device::shared_address(to));
      device::fence_proxy_async_shared();
      __syncwarp();
      if (device::lane_index() == 0) {
        device::tensor_store_2d(&c, at.first_column + box * width, at.first_row, to);
        device::commit_stores();
      }
    }
  }
  static __device__ __forceinline__ void finish() { device::wait_stores_read<0>(); }
};

// Whether a store brings another matrix.
template <class Store>
constexpr bool exchanges = false;
template <>
constexpr bool exchanges<TmaExchange> = true;

}  // namespace aisp::gemm
