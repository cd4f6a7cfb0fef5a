// SPDX-License-Identifier: Apache-2.0
// How a warp's results leave its registers. A store is an object with
//   using Element;
//     of C
//   static constexpr bool predicated;
//     whether it leaves rows alone that are not the tile's
//   static constexpr bool any_width;
//     whether n may be any number; all rows are one group's
//   template <int columns> static constexpr unsigned staging_bytes;
//     of shared memory for each consumer warp, where a tile has so many columns
//   template <int columns> static constexpr int box_columns;
//     of its boxes; 0 without TMA
//   template <int count> void put(const float (&sums)[count], const Fragment&, unsigned char* staging, const CUtensorMap&) const;
//   static void finish();
//     before the block ends
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>

#include "epilogue.cuh"

namespace aisp::gemm {

namespace detail {

// Four words in each of four neighbouring lanes, transposed: word i of lane l is exchanged with word l of lane i.
__device__ __forceinline__ uint4 transpose_quad(uint4 w) {
  const bool upper = (threadIdx.x & 2) != 0, odd = (threadIdx.x & 1) != 0;
  const unsigned x = __shfl_xor_sync(~0u, upper ? w.x : w.z, 2), y = __shfl_xor_sync(~0u, upper ? w.y : w.w, 2);
  w = upper ? make_uint4(x, y, w.z, w.w) : make_uint4(w.x, w.y, x, y);
  const unsigned first = __shfl_xor_sync(~0u, odd ? w.x : w.y, 1), second = __shfl_xor_sync(~0u, odd ? w.z : w.w, 1);
  return odd ? make_uint4(first, w.y, second, w.w) : make_uint4(w.x, first, w.z, second);
}

// 16 bytes of one row for each lane: of `sums`, beginning with sums[0], those of the thread's upper row (or with 2 those of its
// lower one). In bf16 lane q of the four that share a row gets columns 8 q to 8 q + 7 of 32, in e4m3 columns 16 q to 16 q + 15 of
// 64.
template <class Element>
__device__ __forceinline__ uint4 row_of_quad(const float* sums, int lower) {
  unsigned w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(Element) == 2) {
      const float* const s = sums + 4 * i + lower;
      w[i] = device::narrow_bf16(s[0], s[1]);
    } else {
      const float* const s = sums + 8 * i + lower;
      w[i] = device::narrow_e4m3(s[0], s[1]) | device::narrow_e4m3(s[4], s[5]) << 16;
    }
  }
  const uint4 v = transpose_quad(make_uint4(w[0], w[1], w[2], w[3]));
  if constexpr (sizeof(Element) == 2) return v;
  // Lower halves are the first eight columns, upper ones the next.
  return make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                    __byte_perm(v.z, v.w, 0x7632));
}

// Columns that four lanes store at a time, 16 bytes each.
template <class Element>
constexpr int quad_columns = 64 / sizeof(Element);

// A box of staging has rows of 128, 64 or 32 bytes, swizzled as TMA has it: the 16-byte chunk c of a row lies at c ^ swizzle.
template <int row_bytes>
__device__ __forceinline__ unsigned swizzle(unsigned row) {
  static_assert(row_bytes == 128 || row_bytes == 64 || row_bytes == 32);
  return row / (128 / row_bytes) % (row_bytes / 16);
}

template <class T>
__device__ __forceinline__ void store_shared(std::uint32_t address, T value) {
  *static_cast<T*>(__cvta_shared_to_generic(address)) = value;
}

// The warp's results of `width` columns, beginning with sums[first], to `box`.
template <class Element, int width, int count>
__device__ __forceinline__ void stage_box(const float (&sums)[count], int first, std::uint32_t box) {
  constexpr int row_bytes = width * sizeof(Element);
  const unsigned lane = device::lane_index();
  if constexpr (sizeof(Element) == 2) {
    const unsigned row = lane % 16, chunk = lane / 16 ^ swizzle<row_bytes>(row);
#pragma unroll
    for (int pair = 0; pair < width / 16; ++pair) {
      const float* const s = sums + first + pair * 8;
      device::store_matrices(box + row * row_bytes + (chunk ^ static_cast<unsigned>(2 * pair)) * 16,
                             device::narrow_bf16(s[0], s[1]), device::narrow_bf16(s[2], s[3]), device::narrow_bf16(s[4], s[5]),
                             device::narrow_bf16(s[6], s[7]));
    }
  } else if constexpr (sizeof(Element) == 1) {
    static_assert(width % 64 == 0, "four lanes exchange 64 columns; otherwise RowsStore");
#pragma unroll
    for (int half = 0; half < width / 64; ++half) {
#pragma unroll
      for (unsigned lower = 0; lower < 2; ++lower) {
        const unsigned row = lane / 4 + lower * 8, chunk = half * 4 + lane % 4;
        store_shared(box + row * row_bytes + (chunk ^ swizzle<row_bytes>(row)) * 16,
                     row_of_quad<Element>(sums + first + half * 32, 2 * lower));
      }
    }
  } else {
#pragma unroll
    for (unsigned group = 0; group < width / 8; ++group) {
#pragma unroll
      for (unsigned lower = 0; lower < 2; ++lower) {
        const unsigned row = lane / 4 + lower * 8, chunk = group * 2 + lane % 4 / 2;
        const float* const s = sums + first + group * 4 + lower * 2;
        store_shared(box + row * row_bytes + (chunk ^ swizzle<row_bytes>(row)) * 16 + lane % 2 * 8, make_float2(s[0], s[1]));
      }
    }
  }
}

}  // namespace detail

// By TMA, box by box through up to `buffers` boxes of 16 rows of staging. A box is waited for when its place is needed again;
// that of the tile's last boxes is one tile later. A warp is on its own here: it fences and meets no other. `add`: to what C
// holds, fp32.
template <class Element_ = bf16, int buffers = 2, bool add = false>
struct TmaStore {
  using Element = Element_;
  static_assert(!add || sizeof(Element) == 4, "only fp32 is added to");
  static constexpr bool predicated = false, any_width = false;
  static constexpr int box_rows = 16;
  // The widest that divides the tile, at most 128 bytes.
  template <int columns>
  static constexpr int box_columns = columns * sizeof(Element) % 128 == 0  ? 128 / sizeof(Element)
                                     : columns * sizeof(Element) % 64 == 0 ? 64 / sizeof(Element)
                                                                           : 32 / sizeof(Element);
  // So many that a tile begins with the place that was filled first.
  template <int columns>
  static constexpr int places = columns / box_columns<columns> % buffers == 0 ? buffers : 1;
  template <int columns>
  static constexpr unsigned staging_bytes = sizeof(Element[box_rows][places<columns>][box_columns<columns>]);

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char* staging,
                                      const CUtensorMap& c) const {
    constexpr int columns = count * 2, width = box_columns<columns>, boxes = columns / width;
    static_assert(columns % width == 0, "a tile must be whole boxes of at least 32 bytes; otherwise RowsStore");
    const bool leader = device::lane_index() == 0;
#pragma unroll
    for (int box = 0; box < boxes; ++box) {
      unsigned char* const to = staging + box % places<columns> * (box_rows * width * sizeof(Element));
      if (leader) device::wait_stores_read<places<columns> - 1>();
      __syncwarp();
      detail::stage_box<Element, width>(sums, box * (width / 2), device::shared_address(to));
      device::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        if constexpr (add) device::tensor_add_2d(&c, at.first_column + box * width, at.first_row, to);
        else device::tensor_store_2d(&c, at.first_column + box * width, at.first_row, to);
        device::commit_stores();
      }
    }
  }
  static __device__ __forceinline__ void finish() { device::wait_stores_read<0>(); }  // they still read shared memory
};

// By the threads, in whole sectors, only rows and columns that exist: for tiles with tails. `add`: to what C holds, fp32, which
// no other tile changes.
template <class Element_ = bf16, bool add = false>
struct RowsStore {
  using Element = Element_;
  static_assert(!add || sizeof(Element) == 4, "only fp32 is added to");
  static constexpr bool predicated = true, any_width = false;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char*, const CUtensorMap&) const {
    constexpr int whole =
        sizeof(Element) == 4 ? 0 : count * 2 / detail::quad_columns<Element> * (detail::quad_columns<Element> / 2);
    const int in_quad = static_cast<int>(device::lane_index()) % 4;
#pragma unroll
    for (int lower = 0; lower <= 2; lower += 2) {
      const int row = at.row(lower);
      Element* const to = c + static_cast<std::size_t>(row) * at.column_end;
      if constexpr (whole > 0) {
#pragma unroll
        for (int i = 0; i < whole; i += detail::quad_columns<Element> / 2) {
          const uint4 v = detail::row_of_quad<Element>(sums + i, lower);
          const int column = at.first_column + i * 2 + in_quad * static_cast<int>(16 / sizeof(Element));
          if (row < at.row_end && column < at.column_end) *reinterpret_cast<uint4*>(to + column) = v;
        }
      }
#pragma unroll
      for (int i = whole + lower; i < count; i += 4)
        if (at.exists(i)) put_pair(to + at.column(i), sums[i], sums[i + 1]);
    }
  }
  static __device__ __forceinline__ void finish() {}

 private:
  static __device__ __forceinline__ void put_pair(Element* to, float x, float y) {
    if constexpr (sizeof(Element) == 2) *reinterpret_cast<unsigned*>(to) = device::narrow_bf16(x, y);
    else if constexpr (sizeof(Element) == 1) *reinterpret_cast<unsigned short*>(to) = device::narrow_e4m3(x, y);
    else {
      float2 v = make_float2(x, y);
      if constexpr (add) {
        const float2 held = *reinterpret_cast<const float2*>(to);
        v = make_float2(held.x + x, held.y + y);
      }
      *reinterpret_cast<float2*>(to) = v;
    }
  }
};

// C transposed, c[n][m]: for few rows of activations, which as B make narrow tiles (tile_n of 8, 16, ...), where as A they would
// fill a small part of the 64 rows that wgmma takes; the weights are A. m is even, n any number.
template <class Element_ = bf16>
struct ColumnsStore {
  using Element = Element_;
  static_assert(sizeof(Element) >= 2, "of bf16 or fp32");
  static constexpr bool predicated = true, any_width = true;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char*, const CUtensorMap&) const {
    const int lane = static_cast<int>(device::lane_index());
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      if constexpr (sizeof(Element) == 2) {
        // Eight columns of eight rows: afterwards a lane has two rows of one column, so that four lanes have 16 bytes.
        const unsigned pair = device::transpose_matrix(device::narrow_bf16(sums[i], sums[i + 1]));
        const int column = at.first_column + i / 4 * 8 + lane / 4, row = at.first_row + i % 4 / 2 * 8 + lane % 4 * 2;
        if (row < at.row_end && column < at.column_end) *reinterpret_cast<unsigned*>(place(at, row, column)) = pair;
      } else {
        // Eight lanes have a sector.
        if (at.exists(i)) *place(at, at.row(i), at.column(i)) = sums[i];
        if (at.exists(i + 1)) *place(at, at.row(i), at.column(i + 1)) = sums[i + 1];
      }
    }
  }
  static __device__ __forceinline__ void finish() {}

 private:
  // All rows are one group's, which end where C's columns do.
  __device__ __forceinline__ Element* place(const Fragment& at, int row, int column) const {
    return c + static_cast<std::size_t>(column) * at.row_end + row;
  }
};

// The partial sums of KSlices, to a workspace [slice][m][n].
struct SlicesStore {
  using Element = float;
  static constexpr bool predicated = true, any_width = true;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  float* c = nullptr;

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char*, const CUtensorMap&) const {
    float* const part = c + static_cast<std::size_t>(at.slice) * at.row_end * at.column_end;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (at.exists(i)) part[static_cast<std::size_t>(at.row(i)) * at.column_end + at.column(i)] = sums[i];
    }
  }
  static __device__ __forceinline__ void finish() {}
};

// The store of KRanges: `whole` stores tiles that a cluster has all of K of, and others go to a workspace of as many slots, each
// the rows that a cluster has at a time, in the order in which threads hold them: float4[slot][rows / 16][columns / 8][lane].
template <class Whole, int cluster_rows>
struct WholeOrPart {
  using Element = typename Whole::Element;
  static_assert(Whole::predicated, "there is no staging for TMA here");
  static constexpr bool predicated = true, any_width = Whole::any_width;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;
  float4* parts = nullptr;

  template <int count>
  static __device__ __forceinline__ std::size_t place(int slot, int first_row) {
    const int rows = first_row % cluster_rows / 16;
    return (static_cast<std::size_t>(slot) * (cluster_rows / 16) + rows) * (count / 4 * 32) + device::lane_index();
  }
  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char* staging,
                                      const CUtensorMap& map) const {
    if (at.slice < 0) Whole{c}.put(sums, at, staging, map);
    else {
      float4* const to = parts + place<count>(at.slice, at.first_row);
#pragma unroll
      for (int i = 0; i < count; i += 4) to[i * 8] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
  }
  static __device__ __forceinline__ void finish() {}
};

// Nothing: of a product whose epilogue is all that is wanted.
struct NoStore {
  using Element = bf16;
  static constexpr bool predicated = true, any_width = false;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;

  template <int count>
  __device__ __forceinline__ void put(const float (&)[count], const Fragment&, unsigned char*, const CUtensorMap&) const {}
  static __device__ __forceinline__ void finish() {}
};

}  // namespace aisp::gemm
