// SPDX-License-Identifier: Apache-2.0
// Attention of one decoding step over a bf16 key-value cache with grouped heads (32 query heads on 8 KV heads of 128), split over
// the rows of the cache (Dao and others, Flash-Decoding, 2023): each block reads its share once, with all four query heads of a
// group.
#pragma once
#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::decode {

using bf16 = __nv_bfloat16;

constexpr int head_dim = 128, kv_heads = 8, group = 4, q_heads = kv_heads * group;
constexpr int row_elements = kv_heads * head_dim;        // of K or V, per position
constexpr int splits = 3, threads = 128;                 // blocks per (sequence, KV head); 8 half-warps read one row each
constexpr int half_warps = threads / 16, tile_rows = 4;  // rows a half-warp has in flight
constexpr float scale_log2 = 0.08838834764831845f * 1.4426950408889634f;  // 1 / sqrt(head_dim), in powers of two

struct KvCache {
  bf16 *k, *v;
  std::size_t sequence_elements;  // distance between two sequences
};

struct StepInput {
  const bf16 *q, *k_row, *v_row;  // of this step: [sequence][head][head_dim]
};

struct Partial {  // of one split: running maximum, sum of weights, weighted values
  float maximum[group], sum[group], values[group][head_dim];
};

__device__ inline void unpack(uint4 packed, float (&values)[8]) {
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000);
  }
}

// Sums 16 values over the 16 lanes of a half-warp; lane i ends with the sum of value i. Each step halves the values a lane keeps.
__device__ inline float reduce_transposed(float (&values)[16], int lane) {
#pragma unroll
  for (int width = 8; width > 0; width /= 2) {
    const bool upper = lane & width;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float give = upper ? values[i] : values[i + width];
      const float keep = upper ? values[i + width] : values[i];
      values[i] = keep + __shfl_xor_sync(0xFFFFFFFF, give, width);
    }
  }
  return values[0];
}

// Folds `from` into `into` (online softmax).
__device__ inline void merge(float& maximum, float& sum, float (&acc)[8], float other_maximum, float other_sum,
                             const float (&other)[8]) {
  const float top = fmaxf(maximum, other_maximum);
  const float a = exp2f(maximum - top), b = exp2f(other_maximum - top);
  maximum = top;
  sum = sum * a + other_sum * b;
#pragma unroll
  for (int i = 0; i < 8; ++i) acc[i] = acc[i] * a + other[i] * b;
}

// One step of attention for one KV head of one sequence and a third of its rows; the last third to finish joins all. The newest
// row comes from the step's input and is also written into the cache.
static __global__ __launch_bounds__(threads, 3) void decode_kernel(StepInput in, KvCache cache, int length, Partial* partials,
                                                                   unsigned* arrived, bf16* out) {
  __shared__ Partial shared[half_warps];
  __shared__ bool last_block;
  const int head = blockIdx.x, sequence = blockIdx.y, split = blockIdx.z;
  const int half = threadIdx.x / 16, lane = threadIdx.x % 16;
  const std::size_t offset = sequence * cache.sequence_elements + head * head_dim + lane * 8;
  const std::size_t row_offset = static_cast<std::size_t>(sequence) * row_elements + head * head_dim + lane * 8;
  const int rows = length + 1, first = static_cast<int>(static_cast<long long>(rows) * split / splits);
  const int end = static_cast<int>(static_cast<long long>(rows) * (split + 1) / splits);
  if (split == splits - 1) {  // the only block that reads the newest row
    if (half == 0) {
      const std::size_t newest = offset + static_cast<std::size_t>(length) * row_elements;
      *reinterpret_cast<uint4*>(cache.k + newest) = *reinterpret_cast<const uint4*>(in.k_row + row_offset);
      *reinterpret_cast<uint4*>(cache.v + newest) = *reinterpret_cast<const uint4*>(in.v_row + row_offset);
    }
    __syncthreads();
  }

  float q[group][8];
#pragma unroll
  for (int h = 0; h < group; ++h) {
    unpack(*reinterpret_cast<const uint4*>(in.q + (static_cast<std::size_t>(sequence) * q_heads + head * group + h) * head_dim +
                                           lane * 8),
           q[h]);
#pragma unroll
    for (int i = 0; i < 8; ++i) q[h][i] *= scale_log2;
  }

  // Rows beyond the end are read again from the last one and weighted with zero: loads without branches stay in flight together.
  const auto load = [&](const bf16* base, int row) {
    return __ldcs(reinterpret_cast<const uint4*>(base + offset + static_cast<std::size_t>(min(row, end - 1)) * row_elements));
  };
  float maximum = -1e30f, sum = 0;  // of head lane % 4, over the rows this lane's score belongs to
  float acc[group][8] = {};
  uint4 k[tile_rows];
#pragma unroll
  for (int r = 0; r < tile_rows; ++r) k[r] = load(cache.k, first + half * tile_rows + r);
  for (int row = first + half * tile_rows; row - half * tile_rows < end; row += half_warps * tile_rows) {
    uint4 v[tile_rows];
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) v[r] = load(cache.v, row + r);
    float dots[16];
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
      float values[8];
      unpack(k[r], values);
#pragma unroll
      for (int h = 0; h < group; ++h) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) dot = fmaf(values[i], q[h][i], dot);
        dots[r * group + h] = dot;
      }
    }
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) k[r] = load(cache.k, row + half_warps * tile_rows + r);
    // Lane i now gets the score of row i / 4 and head i % 4.
    const bool valid = row + lane / group < end;
    const float score = reduce_transposed(dots, lane);
    float top = valid ? score : -1e30f;
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 4));
    top = fmaxf(maximum, fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 8)));
    const float decay = exp2f(maximum - top), weight = valid ? exp2f(score - top) : 0;
    maximum = top;
    sum = sum * decay + weight;
#pragma unroll
    for (int h = 0; h < group; ++h) {
      const float head_decay = __shfl_sync(0xFFFFFFFF, decay, h, 16);
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[h][i] *= head_decay;
    }
#pragma unroll
    for (int r = 0; r < tile_rows; ++r) {
      float values[8];
      unpack(v[r], values);
#pragma unroll
      for (int h = 0; h < group; ++h) {
        const float p = __shfl_sync(0xFFFFFFFF, weight, r * group + h, 16);
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[h][i] = fmaf(p, values[i], acc[h][i]);
      }
    }
  }
  sum += __shfl_xor_sync(0xFFFFFFFF, sum, 4);
  sum += __shfl_xor_sync(0xFFFFFFFF, sum, 8);
  if (lane < group) {
    shared[half].maximum[lane] = maximum;
    shared[half].sum[lane] = sum;
  }
#pragma unroll
  for (int h = 0; h < group; ++h)
#pragma unroll
    for (int i = 0; i < 8; ++i) shared[half].values[h][lane * 8 + i] = acc[h][i];
  __syncthreads();

  // Thread t joins eight dimensions of head t / 16 % 4; the upper half of the block has nothing left to do but to wait.
  const int joined_head = half % group;
  const std::size_t job = static_cast<std::size_t>(sequence) * kv_heads + head;
  const auto join = [&](const Partial* parts, int count, float& m, float& s, float(&values)[8]) {
    m = -1e30f, s = 0;
    for (int part = 0; part < count; ++part) {
      float other[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) other[i] = parts[part].values[joined_head][lane * 8 + i];
      merge(m, s, values, parts[part].maximum[joined_head], parts[part].sum[joined_head], other);
    }
  };
  float m, s, values[8] = {};
  if (half < group) {
    join(shared, half_warps, m, s, values);
    Partial& mine = partials[job * splits + split];
    mine.maximum[joined_head] = m;
    mine.sum[joined_head] = s;
#pragma unroll
    for (int i = 0; i < 8; ++i) mine.values[joined_head][lane * 8 + i] = values[i];
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x == 0) last_block = atomicAdd(&arrived[job], 1u) == splits - 1;
  __syncthreads();
  if (!last_block || half >= group) return;
  __threadfence();
  if (threadIdx.x == 0) arrived[job] = 0;
#pragma unroll
  for (float& value : values) value = 0;
  join(partials + job * splits, splits, m, s, values);
  bf16* to = out + (static_cast<std::size_t>(sequence) * q_heads + head * group + joined_head) * head_dim + lane * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = __float2bfloat16_rn(values[i] / s);
}

}  // namespace aisp::decode
