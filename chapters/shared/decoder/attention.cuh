// SPDX-License-Identifier: Apache-2.0
// Causal attention of a step's rows over the cache, with bits that depend on nothing but the row's own context. Keys are taken in
// tiles of 64 and pieces of 512, counted from the context's first key. Within a piece the softmax is kept online, row by row: a
// row whose maximum does not grow is multiplied by nothing. Pieces begin anew and are merged in their order. Two kernels do this:
// short_kernel for few rows of a sequence, whose warps share the keys of a tile, and long_kernel for many, whose warps share the
// rows. Products go along head and keys in steps of 16 in both, and a row's weights are added up by the tensor cores as well, as
// a column of ones among the values, so that no sum depends on which lane holds what.
#pragma once
#include <aisp/device/fence.cuh>

#include "attention_tiles.cuh"

namespace aisp::decoder {

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
  uint4 queries[head_size / 16][long_threads];  // fragments, a thread's own, as what follows
  float totals[head_size / 2][long_threads];
};

// blockIdx: the KV head, the block of rows (128 heads and tokens at most), and with `split` the piece; else a block takes all.
template <int head_size, class Cache>
__global__ __launch_bounds__(long_threads, 2) void long_kernel(const __grid_constant__ Attention<Cache> work, bool split) {
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
  // The keys up to which the warp's rows all see, and after which none does.
  const int first_last = view.position(row),
            last_last = row < view.rows ? view.position(row + 15 < view.rows ? row + 15 : view.rows - 1) : -1;

  RowState rows;
  float values[count][4] = {}, maximum_so_far[2], sum_so_far[2];
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
    // A piece that ends and is not the only one joins those before it.
    if (split || view.pieces == 1 || ((i + 1) % tiles_of_piece != 0 && i + 1 < tiles)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_first = i < tiles_of_piece;
      const float before = is_first ? minus_infinity : maximum_so_far[half], raised = fmaxf(before, rows.maximum[half]);
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
      sum_so_far[half] = merged(is_first ? 0 : sum_so_far[half], a, rows.sums[2 * half], b);
      maximum_so_far[half] = raised;
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
    for (int half = 0; half < 2; ++half) sums[half] = sum_so_far[half];
#pragma unroll
    for (int n = 0; n < count; ++n)
#pragma unroll
      for (int j = 0; j < 4; ++j) values[n][j] = shared.totals[n * 4 + j][threadIdx.x];
  }
  store_rows<head_size, count>(work, view, values, sums, row, 0);
}

}  // namespace aisp::decoder
