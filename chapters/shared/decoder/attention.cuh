// SPDX-License-Identifier: Apache-2.0
// Causal attention of a step's rows over the cache, with bits that depend on nothing but the row's own context. Keys are taken in
// tiles of 64 and pieces of 512, counted from the context's first key. Within a piece the softmax is kept online, row by row: a
// row whose maximum does not grow is multiplied by nothing. Pieces begin anew and are merged in their order. Two kernels do this:
// short_kernel for few rows of a sequence, whose warps share the keys of a tile, and long_kernel for many, whose warps share the
// rows. Products go along head and keys in steps of 16 in both, and a row's weights are added up by the tensor cores as well, as
// a column of ones among the values, so that no sum depends on which lane holds what.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/exponential.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>

#include "../attention/cache.cuh"
#include "batch.hpp"

namespace aisp::decoder {

constexpr int tile = 64, piece_keys = 512, tiles_of_piece = piece_keys / tile;
constexpr int short_rows = 16, short_threads = 128, short_stages = 3;
constexpr int long_rows = 128, long_threads = 256, long_stages = 2;
constexpr float minus_infinity = -__builtin_huge_valf();

// States of pieces, for merging: of row r, head h and piece p at (r * heads + h) * most_pieces + p.
struct Partials {
  float* values;      // [state][head_size]
  float2* sums;       // [state]: maximum and sum of weights
  unsigned* tickets;  // [block of rows][KV head]: 0 between launches
  int most_pieces;
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
  // Of its queries and results: the row of the batch and the head.
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

// The fragment of dimensions 16 i and up of the queries of a warp's 16 rows from `row` on; those behind the block's are zeros.
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

// What a thread knows of its two rows in the present piece: the maximum, and in the first and third element of `sums` the sums of
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
// Of eight keys: two words, of the row lane / 4 and the one eight below.
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

template <int head_size>
struct ShortMemory {
  static constexpr int pitch = tile + 8;
  Stage<head_size> stages[short_stages];
  bf16 weights[short_rows * pitch];
  float maxima[2][short_threads / 32][short_rows];
};

// blockIdx: the KV head, the block of rows (16 heads and tokens at most), the piece.
template <int head_size, class Cache>
__global__ __launch_bounds__(short_threads) void short_kernel(const __grid_constant__ Attention<Cache> work) {
  extern __shared__ __align__(128) unsigned char memory[];
  ShortMemory<head_size>& shared = *reinterpret_cast<ShortMemory<head_size>*>(memory);
  constexpr int dimensions = head_size / 4, count = dimensions / 8;  // of a warp
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int piece = static_cast<int>(blockIdx.z), begin = piece * piece_keys;
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const BlockView<Cache> view{work, work.blocks[blockIdx.y], static_cast<int>(blockIdx.x)};
  if (view.sequence < 0 || begin >= view.end) return;
  const int end = view.end < begin + piece_keys ? view.end : begin + piece_keys, tiles = (end - begin + tile - 1) / tile;
  const auto load = [&](int i) {
    if (i < tiles)
      load_tile<head_size, short_threads>(shared.stages[i % short_stages], work.cache, view.sequence, view.kv_head,
                                          begin + i * tile, end);
    device::commit_copies();
  };
  for (int i = 0; i < short_stages - 1; ++i) load(i);
  uint4 q[head_size / 16];
#pragma unroll
  for (int i = 0; i < head_size / 16; ++i) q[i] = load_queries<head_size>(work, view, 0, i);
  const int last0 = view.position(lane / 4), last1 = view.position(lane / 4 + 8);

  RowState rows;
  float values[count][4] = {};
  for (int i = 0; i < tiles; ++i) {
    device::wait_copies<short_stages - 2>();
    __syncthreads();
    load(i + short_stages - 1);
    const Stage<head_size>& stage = shared.stages[i % short_stages];
    float scores[2][4], maximum[2] = {minus_infinity, minus_infinity}, factor[2];
    score<head_size, 2>(
        scores, [&](int i) { return q[i]; }, stage.k, warp * 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      hide(scores[n], begin + i * tile + warp * 16 + n * 8 + lane % 4 * 2, last0, last1);
#pragma unroll
      for (int j = 0; j < 4; ++j) maximum[j / 2] = fmaxf(maximum[j / 2], scores[n][j]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 1));
      maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 2));
      if (lane % 4 == 0) shared.maxima[i % 2][warp][lane / 4 + half * 8] = maximum[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int w = 0; w < short_threads / 32; ++w)
        maximum[half] = fmaxf(maximum[half], shared.maxima[i % 2][w][lane / 4 + half * 8]);
    if (raise(rows, maximum, work.scale_log2, factor)) {
      multiply(rows.sums, factor);
#pragma unroll
      for (int n = 0; n < count; ++n) multiply(values[n], factor);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      unsigned words[2];
      weights(words, scores[n], rows, work.scale_log2);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(shared.weights + (lane / 4 + half * 8) * shared.pitch + warp * 16 + n * 8 + lane % 4 * 2) =
            words[half];
    }
    __syncthreads();
#pragma unroll
    for (int key = 0; key < tile; key += 16) {
      unsigned p[4];
      device::load_matrices(p, device::shared_address(shared.weights + lane % 16 * shared.pitch + key + lane / 16 * 8));
      add_values<head_size, count>(values, rows, p, stage.v, key, warp * count);
    }
  }
  if (view.pieces == 1) {
    store_rows<head_size, count>(work, view, values, {rows.sums[0], rows.sums[2]}, 0, warp * count);
    return;
  }
  store_piece<head_size, count>(work, view, values, rows, 0, warp * count, piece);
  merge_if_last<head_size>(work, view, work.partials.tickets + blockIdx.y * work.kv_heads + view.kv_head);
}

template <int head_size>
struct LongMemory {
  Stage<head_size> stages[long_stages];
  uint4 queries[head_size / 16][long_threads];    // fragments, a thread's own, as what follows
  float totals[head_size / 2 + 4][long_threads];  // behind them the maxima and the sums of rows
};

// blockIdx: the KV head, the block of rows (128 heads and tokens at most), and with `split` the piece; else a block takes all.
template <int head_size, class Cache>
__global__ __launch_bounds__(long_threads, 1) void long_kernel(const __grid_constant__ Attention<Cache> work, bool split) {
  extern __shared__ __align__(128) unsigned char memory[];
  LongMemory<head_size>& shared = *reinterpret_cast<LongMemory<head_size>*>(memory);
  constexpr int count = head_size / 8;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, row = warp * 16;
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const BlockView<Cache> view{work, work.blocks[blockIdx.y], static_cast<int>(blockIdx.x)};
  const int begin = split ? static_cast<int>(blockIdx.z) * piece_keys : 0;
  if (view.sequence < 0 || begin >= view.end) return;
  const int end = split && view.end > begin + piece_keys ? begin + piece_keys : view.end, tiles = (end - begin + tile - 1) / tile;
  const auto load = [&](int i) {
    if (i < tiles)
      load_tile<head_size, long_threads>(shared.stages[i % long_stages], work.cache, view.sequence, view.kv_head,
                                         begin + i * tile, end);
    device::commit_copies();
  };
  for (int i = 0; i < long_stages - 1; ++i) load(i);
#pragma unroll 2
  for (int i = 0; i < head_size / 16; ++i) shared.queries[i][threadIdx.x] = load_queries<head_size>(work, view, row, i);
  const int last0 = view.position(row + lane / 4), last1 = view.position(row + lane / 4 + 8);
  // The keys up to which the warp's rows all see, and behind which none does.
  const int first_last = view.position(row),
            last_last = row < view.rows ? view.position(row + 15 < view.rows ? row + 15 : view.rows - 1) : -1;

  RowState rows;
  float values[count][4] = {};
  for (int i = 0; i < tiles; ++i) {
    device::wait_copies<long_stages - 2>();
    __syncthreads();
    load(i + long_stages - 1);
    const int first_key = begin + i * tile;
    if (first_key <= last_last) {
      const Stage<head_size>& stage = shared.stages[i % long_stages];
      float scores[tile / 8][4], maximum[2] = {minus_infinity, minus_infinity}, factor[2];
      score<head_size, tile / 8>(
          scores, [&](int i) { return shared.queries[i][threadIdx.x]; }, stage.k, 0);
      if (first_key + tile - 1 > first_last)
#pragma unroll
        for (int n = 0; n < tile / 8; ++n) hide(scores[n], first_key + n * 8 + lane % 4 * 2, last0, last1);
#pragma unroll
      for (int n = 0; n < tile / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) maximum[j / 2] = fmaxf(maximum[j / 2], scores[n][j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 1));
        maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 2));
      }
      if (raise(rows, maximum, work.scale_log2, factor)) {
        multiply(rows.sums, factor);
#pragma unroll
        for (int n = 0; n < count; ++n) multiply(values[n], factor);
      }
#pragma unroll
      for (int n = 0; n < tile / 8; n += 2) {
        unsigned low[2], high[2];
        weights(low, scores[n], rows, work.scale_log2);
        weights(high, scores[n + 1], rows, work.scale_log2);
        const unsigned p[4] = {low[0], low[1], high[0], high[1]};
        add_values<head_size, count>(values, rows, p, stage.v, n * 8, 0);
      }
    }
    // Where a piece ends and it is not the only one, it joins those before it.
    if (split || view.pieces == 1 || ((i + 1) % tiles_of_piece != 0 && i + 1 < tiles)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_first = i < tiles_of_piece;
      float &maximum = shared.totals[head_size / 2 + half][threadIdx.x],
            &sum = shared.totals[head_size / 2 + 2 + half][threadIdx.x];
      const float before = is_first ? minus_infinity : maximum, raised = fmaxf(before, rows.maximum[half]);
      const float a = weight_of(before, raised, work.scale_log2), b = weight_of(rows.maximum[half], raised, work.scale_log2);
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          float& total = shared.totals[n * 4 + j][threadIdx.x];
          total = merged(is_first ? 0 : total, a, values[n][j], b);
          values[n][j] = 0;
        }
        asm volatile("" ::: "memory");  // not all totals at once, for which there are no registers
      }
      sum = merged(is_first ? 0 : sum, a, rows.sums[2 * half], b);
      maximum = raised;
    }
    rows = {};
  }
  if (split && view.pieces > 1) {
    store_piece<head_size, count>(work, view, values, rows, row, 0, static_cast<int>(blockIdx.z));
    merge_if_last<head_size>(work, view, work.partials.tickets + blockIdx.y * work.kv_heads + view.kv_head);
    return;
  }
  float sums[2] = {rows.sums[0], rows.sums[2]};
  if (view.pieces > 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[half] = shared.totals[head_size / 2 + 2 + half][threadIdx.x];
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) values[n][j] = shared.totals[n * 4 + j][threadIdx.x];
  }
  store_rows<head_size, count>(work, view, values, sums, row, 0);
}

}  // namespace aisp::decoder
