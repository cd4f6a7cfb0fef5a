// SPDX-License-Identifier: Apache-2.0
// The arithmetic that short_kernel and long_kernel (attention.cuh) share, so that a row has the same bits in both: a warp's 16
// rows against a tile of 64 keys, the state of a piece of 512, and how pieces are merged.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/exponential.cuh>
#include <aisp/device/matrix.cuh>

#include "attention/cache.cuh"
#include "batch.hpp"

namespace aisp::decoder {

constexpr int tile = 64, piece_keys = 512, tiles_of_piece = piece_keys / tile;
constexpr int short_rows = 16, short_threads = 128, short_stages = 3;
constexpr int long_rows = 64, long_threads = 128, long_stages = 2;
constexpr float minus_infinity = -__builtin_huge_valf();

// States of pieces, for merging: of row r, head h and piece p at (r * heads + h) * most_pieces + p.
struct Partials {
  float* values;      // [state][head_size]
  float2* sums;       // [state]: maximum and sum of weights
  unsigned* tickets;  // [block of rows][KV head]: 0 between launches
  int most_pieces;
  int rows;  // of a batch that there is room for: long blocks of larger ones are not split
};

template <class Cache>
struct Attention {
  const bf16* qkv;  // [row][pitch]: the heads of queries first
  int pitch;
  Cache cache;
  const int *sequences, *positions;  // of rows
  const RowBlock* blocks;
  int heads, kv_heads;
  float scale_log2;
  bf16* out;  // [row][head][head_size]
  Partials partials;
};

// 2 to the power of what a state with the maximum `from` loses beside one with the maximum `to`; exactly 1 where they are equal.
__device__ __forceinline__ float weight_of(float from, float to, float scale) {
  return from == to ? 1.0f : device::exp2_approximate(__fmul_rn(from - to, scale));
}
__device__ __forceinline__ float merged(float x, float a, float y, float b) { return __fmaf_rn(y, b, __fmul_rn(x, a)); }

// A block's part of the keys, and which row of the block is which.
template <class Cache>
struct BlockView {
  int kv_head, group, sequence, first_row, first_position, rows, end, pieces;  // end: of the keys
  __device__ __forceinline__ BlockView(const Attention<Cache>& work, const RowBlock& block, int head)
      : kv_head{head},
        group{work.heads / work.kv_heads},
        sequence{block.rows > 0 ? work.sequences[block.first] : -1},
        first_row{block.first},
        first_position{block.rows > 0 ? work.positions[block.first] : 0},
        rows{block.rows * group},
        end{first_position + block.rows},
        pieces{(end + piece_keys - 1) / piece_keys} {}
  __device__ __forceinline__ int position(int row) const { return first_position + row / group; }
  // Return the place of queries and results: the row of the batch and the head.
  __device__ __forceinline__ std::size_t batch_row(int row) const { return static_cast<std::size_t>(first_row + row / group); }
  __device__ __forceinline__ int head(int row) const { return kv_head * group + row % group; }
  __device__ __forceinline__ std::size_t state(const Attention<Cache>& work, int row) const {
    return (batch_row(row) * work.heads + head(row)) * work.partials.most_pieces;
  }
};

// Rows of head_size in shared memory, their 16-byte chunks swizzled so that eight rows of one chunk lie in different banks.
template <int head_size>
struct Tile {
  static constexpr int chunks = head_size / 8;
  uint4 at[tile * chunks];
  __device__ __forceinline__ static int place(int row, int chunk) { return row * chunks + (chunk ^ row % 8); }
  __device__ __forceinline__ std::uint32_t address(int row, int chunk) const {
    return device::shared_address(at + place(row, chunk));
  }
};
template <int head_size>
struct Stage {
  Tile<head_size> k, v;
};

// Keys and values from `first` on; those from `end` on become zeros, which no weight of zero turns into NaN.
template <int head_size, int threads, class Cache>
__device__ __forceinline__ void load_tile(Stage<head_size>& to, const Cache& cache, int sequence, int kv_head, int first,
                                          int end) {
  constexpr int chunks = Tile<head_size>::chunks;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < tile * chunks; i += threads) {
    const int row = i / chunks, chunk = i % chunks, key = first + row;
    const bool valid = key < end;
    const std::size_t from = cache.at(sequence, kv_head, valid ? key : end - 1) + chunk * 8;
    device::copy_async_16_or_zero(to.k.at + Tile<head_size>::place(row, chunk), cache.k + from, valid);
    device::copy_async_16_or_zero(to.v.at + Tile<head_size>::place(row, chunk), cache.v + from, valid);
  }
}

// The fragment of dimensions 16 i and up of the queries of a warp's 16 rows from `row` on; those after the block's are zeros.
template <int head_size, class Cache>
__device__ __forceinline__ uint4 load_queries(const Attention<Cache>& work, const BlockView<Cache>& view, int row, int i) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned words[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + lane / 4 + half * 8;
    const bf16* from =
        work.qkv + view.batch_row(own < view.rows ? own : 0) * work.pitch + view.head(own) * head_size + lane % 4 * 2 + i * 16;
    words[half] = own < view.rows ? *reinterpret_cast<const unsigned*>(from) : 0;
    words[half + 2] = own < view.rows ? *reinterpret_cast<const unsigned*>(from + 8) : 0;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Scores of 16 rows and `count` * 8 keys of the tile from `key` on. query(i) gives the fragment of dimensions 16 i and up.
template <int head_size, int count, class Query>
__device__ __forceinline__ void score(float (&scores)[count][4], const Query& query, const Tile<head_size>& k, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0;
#pragma unroll
  for (int i = 0; i < head_size / 32; ++i) {
    const uint4 low = query(2 * i), high = query(2 * i + 1);
    const unsigned q[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
    for (int n = 0; n < count; ++n) {
      unsigned b[4];
      device::load_matrices(b, k.address(key + n * 8 + lane % 8, i * 4 + lane / 8));
      device::mma_bf16(scores[n], q[0], b[0], b[1]);
      device::mma_bf16(scores[n], q[1], b[2], b[3]);
    }
  }
}

// A thread's state of its two rows in the present piece: the maximum, and in the first and third element of `sums` the sums of
// weights.
struct RowState {
  float maximum[2] = {minus_infinity, minus_infinity}, sums[4] = {};
};

// The exponent's base moves to the tile's maxima; true if some row of the warp must be multiplied by its factor.
__device__ __forceinline__ bool raise(RowState& rows, const float (&maximum)[2], float scale, float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = fmaxf(rows.maximum[half], maximum[half]);
    factor[half] = weight_of(rows.maximum[half], raised, scale);
    rows.maximum[half] = raised;
  }
  return __any_sync(~0u, factor[0] != 1 || factor[1] != 1);
}
__device__ __forceinline__ void multiply(float (&sums)[4], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] *= factor[i / 2];
}
// Computes the weights of eight keys: two words, for the row lane / 4 and the one eight below.
__device__ __forceinline__ void weights(unsigned (&words)[2], const float (&scores)[4], const RowState& rows, float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float offset = rows.maximum[half] == minus_infinity ? 0 : -__fmul_rn(rows.maximum[half], scale);
    words[half] = device::narrow_bf16(device::exp2_approximate(__fmaf_rn(scores[2 * half], scale, offset)),
                                      device::exp2_approximate(__fmaf_rn(scores[2 * half + 1], scale, offset)));
  }
}
__device__ __forceinline__ void hide(float (&scores)[4], int key, int last0, int last1) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (key + i % 2 > (i / 2 == 0 ? last0 : last1)) scores[i] = minus_infinity;
}
// Sixteen keys of the tile from `key` on, weighted: their sum, and `count` * 8 dimensions from chunk `chunk` on.
template <int head_size, int count>
__device__ __forceinline__ void add_values(float (&values)[count][4], RowState& rows, const unsigned (&p)[4],
                                           const Tile<head_size>& v, int key, int chunk) {
  constexpr unsigned ones = 0x3F803F80;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  device::mma_bf16(rows.sums, p, ones, ones);
#pragma unroll
  for (int n = 0; n < count; n += 2) {
    unsigned b[4];
    device::load_matrices_transposed(b, v.address(key + lane % 16, chunk + n + lane / 16));
    device::mma_bf16(values[n], p, b[0], b[1]);
    device::mma_bf16(values[n + 1], p, b[2], b[3]);
  }
}

// A warp's part of a finished row, or of a piece of it: the dimensions of `count` chunks from `chunk` on.
template <int head_size, int count, class Cache>
__device__ __forceinline__ void store_rows(const Attention<Cache>& work, const BlockView<Cache>& view,
                                           const float (&values)[count][4], const float (&sums)[2], int row, int chunk) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + lane / 4 + half * 8;
    if (own >= view.rows) continue;
    const float factor = sums[half] == 0 ? 0 : __fdiv_rn(1.0f, sums[half]);
    bf16* to = work.out + (view.batch_row(own) * work.heads + view.head(own)) * head_size + chunk * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < count; ++n)
      *reinterpret_cast<unsigned*>(to + n * 8) =
          device::narrow_bf16(__fmul_rn(values[n][2 * half], factor), __fmul_rn(values[n][2 * half + 1], factor));
  }
}
template <int head_size, int count, class Cache>
__device__ __forceinline__ void store_piece(const Attention<Cache>& work, const BlockView<Cache>& view,
                                            const float (&values)[count][4], const RowState& rows, int row, int chunk,
                                            int piece) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = row + lane / 4 + half * 8;
    if (own >= view.rows) continue;
    const std::size_t state = view.state(work, own) + piece;
    if (chunk == 0 && lane % 4 == 0) work.partials.sums[state] = make_float2(rows.maximum[half], rows.sums[2 * half]);
    float* to = work.partials.values + state * head_size + chunk * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < count; ++n)
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(values[n][2 * half], values[n][2 * half + 1]);
  }
}

// By the block that is the last of all pieces of its rows to get here: a warp merges one row after the other.
template <int head_size, class Cache>
__device__ __forceinline__ void merge_if_last(const Attention<Cache>& work, const BlockView<Cache>& view, unsigned* ticket) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    is_last = atomicInc(ticket, static_cast<unsigned>(view.pieces - 1)) == static_cast<unsigned>(view.pieces - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  constexpr int columns = head_size / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = warp; row < view.rows; row += static_cast<int>(blockDim.x) / 32) {
    const std::size_t first = view.state(work, row);
    float maximum = minus_infinity, sum = 0, values[columns] = {};
#pragma unroll 4
    for (int piece = 0; piece < view.pieces; ++piece) {
      const float2 of = work.partials.sums[first + piece];
      const float raised = fmaxf(maximum, of.x), a = weight_of(maximum, raised, work.scale_log2),
                  b = weight_of(of.x, raised, work.scale_log2);
      const float* from = work.partials.values + (first + piece) * head_size + lane * columns;
#pragma unroll
      for (int i = 0; i < columns; ++i) values[i] = merged(values[i], a, from[i], b);
      sum = merged(sum, a, of.y, b);
      maximum = raised;
    }
    const float factor = sum == 0 ? 0 : __fdiv_rn(1.0f, sum);
    bf16* to = work.out + (view.batch_row(row) * work.heads + view.head(row)) * head_size + lane * columns;
#pragma unroll
    for (int i = 0; i < columns; i += 2)
      *reinterpret_cast<unsigned*>(to + i) = device::narrow_bf16(__fmul_rn(values[i], factor), __fmul_rn(values[i + 1], factor));
  }
}

}  // namespace aisp::decoder
