// SPDX-License-Identifier: Apache-2.0
// Which keys a row sees. A mask says which tiles of keys a block of rows takes, so that hidden ones cost nothing, and tests keys
// one by one only in tiles that are hidden in part.
//
// Most masks let a row see one span of keys, which moves on with the row; everything follows from the span. `own` of a row is the
// key that stands where the row does when both sequences end together.
#pragma once
#include "keys.cuh"

namespace aisp::attention {

struct Span {
  int begin, end;  // first key, and that after the last
};

struct NoMask {
  __device__ __forceinline__ Span keys_of(int, const Lengths& lengths) const { return {0, lengths.keys}; }
};

// Up to its own.
struct Causal {
  __device__ __forceinline__ Span keys_of(int row, const Lengths& lengths) const {
    const int own = row + lengths.keys - lengths.queries;
    return {0, own + 1 < lengths.keys ? own + 1 : lengths.keys};
  }
};

// From `before` keys before its own to `behind` keys after it.
struct Window {
  int before, behind;
  __device__ __forceinline__ Span keys_of(int row, const Lengths& lengths) const {
    const int own = row + lengths.keys - lengths.queries, begin = own - before, end = own + behind + 1;
    return {begin > 0 ? begin : 0, end < lengths.keys ? end : lengths.keys};
  }
};

// The tiles of a block of rows in the order in which they are taken. Of those from full_begin to full_end - 1 every row sees all.
struct TileSpan {
  int count, first, step, full_begin, full_end;
  __device__ __forceinline__ int index(int i) const { return first + i * step; }
  __device__ __forceinline__ bool partial(int i) const { return index(i) < full_begin || index(i) >= full_end; }
};

// From the last to the first: with a causal mask that begins with the tile that is hidden in part.
template <class Mask>
__device__ __forceinline__ TileSpan tiles_of(const Mask& mask, int, int, int first_row, int rows, const Lengths& lengths) {
  const int end_row = first_row + rows < lengths.queries ? first_row + rows : lengths.queries;
  const Span of_first = mask.keys_of(first_row, lengths), of_last = mask.keys_of(end_row - 1, lengths);
  if (of_last.end <= of_first.begin) return {0, 0, 0, 0, 0};
  const int first = of_first.begin / tile_keys, last = (of_last.end - 1) / tile_keys;
  const int full_end = of_first.end > 0 ? of_first.end / tile_keys : 0;
  return {last - first + 1, last, -1, (of_last.begin + tile_keys - 1) / tile_keys, full_end};
}

// Hides from the thread's two rows, `row` and `row` + 8, what they do not see of the tile from first_key on. Element i of the
// scores is of the column i / 4 * 8 + column + i % 2.
template <class Mask, int count>
__device__ __forceinline__ void hide(const Mask& mask, float (&scores)[count], int, int, int row, int first_key, int column,
                                     const Lengths& lengths, float hidden) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Span seen = mask.keys_of(row + half * 8, lengths);
    const int begin = seen.begin - first_key - column, end = seen.end - first_key - column;
#pragma unroll
    for (int i = 2 * half; i < count; i += 4)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (i / 4 * 8 + j < begin || i / 4 * 8 + j >= end) scores[i + j] = hidden;
  }
}

// The same mask, its tiles taken from the first to the last.
template <class Mask>
struct Ascending : Mask {};

template <class Mask>
__device__ __forceinline__ TileSpan tiles_of(const Ascending<Mask>& mask, int sequence, int head, int first_row, int rows,
                                             const Lengths& lengths) {
  TileSpan tiles = tiles_of(static_cast<const Mask&>(mask), sequence, head, first_row, rows, lengths);
  tiles.first -= tiles.count > 0 ? tiles.count - 1 : 0;
  tiles.step = 1;
  return tiles;
}

// Any mask: a list says which tiles of 128 keys the block of rows b of a head takes, and visible(sequence, head, row, key) is
// asked where the list says so: of keys that exist, and of all rows of a block, also where the last ends after the queries, so
// that what it reads of a row must reach to a multiple of 128. The tiles of block b are those from begins[b] to begins[b + 1] -
// 1; an entry is twice the tile's number, plus 1 where the tile is hidden in part. With head_stride and sequence_stride 0 all
// share the blocks of one head.
template <class Visible>
struct TileList {
  const int *begins, *entries;
  int head_stride, sequence_stride;  // in blocks
  Visible visible;
};

struct ListedTiles {
  int count;
  const int* entries;
  bool tail;  // the last tile of the sequence has keys after its end
  int last;
  __device__ __forceinline__ int index(int i) const { return entries[i] / 2; }
  __device__ __forceinline__ bool partial(int i) const { return entries[i] % 2 == 1 || (tail && entries[i] / 2 == last); }
};

template <class Visible>
__device__ __forceinline__ ListedTiles tiles_of(const TileList<Visible>& mask, int sequence, int head, int first_row, int rows,
                                                const Lengths& lengths) {
  const int* begin = mask.begins + (first_row / rows + head * mask.head_stride + sequence * mask.sequence_stride);
  return {begin[1] - begin[0], mask.entries + begin[0], lengths.keys % tile_keys != 0, lengths.keys / tile_keys};
}

template <class Visible, int count>
__device__ __forceinline__ void hide(const TileList<Visible>& mask, float (&scores)[count], int sequence, int head, int row,
                                     int first_key, int column, const Lengths& lengths, float hidden) {
  // Nothing stands between the questions, so that what they read is asked for at once. The last tile may have keys that do not
  // exist; instead of those its last one is asked about.
  const int last_key = lengths.keys - 1;
  if (first_key + tile_keys <= lengths.keys) {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (!mask.visible(sequence, head, row + i / 2 % 2 * 8, first_key + column + i / 4 * 8 + i % 2)) scores[i] = hidden;
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int key = first_key + column + i / 4 * 8 + i % 2;
      if (!mask.visible(sequence, head, row + i / 2 % 2 * 8, key < last_key ? key : last_key)) scores[i] = hidden;
      if (key > last_key) scores[i] = hidden;
    }
  }
}

}  // namespace aisp::attention
