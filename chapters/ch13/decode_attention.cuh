// SPDX-License-Identifier: Apache-2.0
// Attention of one decoding step over a bf16 key-value cache with grouped heads (32 query heads on 8 KV heads of 128): a block
// reads the rows of one KV head of one sequence once, for all four query heads of its group. Enough sequences to fill the GPU
// are taken for granted, so that rows need not be split over blocks. The products run on tensor cores, as 4 of 16 rows: what is
// wasted there costs nothing, while FMAs for four heads would need a third of all issue slots. Rows go from global memory
// straight into fragments; the order of the head's dimensions within a product is free, so a lane keeps the 16 bytes it loads.
// Unlike decode_kernel of chapters/shared/attention it takes the newest row from the step's input and writes it into the cache,
// so that a step is one kernel.
#pragma once
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

namespace aisp::decode {

using bf16 = __nv_bfloat16;

constexpr int head_dim = 128, kv_heads = 8, group = 4, q_heads = kv_heads * group;
constexpr int row_elements = kv_heads * head_dim;  // of K or V, per position
constexpr int threads = 128, warps = threads / 32;
static_assert(warps == group, "at the end each warp joins one head");
constexpr int tile_rows = 16;                                             // rows of a warp's step
constexpr float scale_log2 = 0.08838834764831845f * 1.4426950408889634f;  // 1 / sqrt(head_dim), in powers of two

struct KvCache {
  bf16 *k, *v;
  std::size_t sequence_elements;  // distance between two sequences
};

struct StepInput {
  const bf16 *q, *k_row, *v_row;  // of this step: [sequence][head][head_dim]
};

struct alignas(16) Partial {  // of some rows: weighted values, running maximum, sum of weights
  float values[group][head_dim], maximum[group], sum[group];
};

// C += A B with A's rows 8 to 15 zero.
__device__ inline void multiply_add(float (&c)[4], unsigned a0, unsigned a2, unsigned b0, unsigned b1) {
  const unsigned a[4] = {a0, 0, a2, 0};
  device::mma_bf16(c, a, b0, b1);
}

__device__ inline unsigned word(const uint4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }

// Volatile: the compiler must not move requests after the work they are to overlap.
__device__ inline uint4 request(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

// The rows of one KV head of one sequence: those in the cache, then the newest from the step's input.
struct Rows {
  const bf16 *cached, *newest;
  int length;  // rows in the cache

  // Rows beyond the newest are the newest once more: loads without branches stay in flight together.
  __device__ const bf16* operator[](int row) const {
    return row < length ? cached + static_cast<std::size_t>(row) * row_elements : newest;
  }
};

// Lane 4 g + t loads the 16-byte pieces t, 4 + t, 8 + t, 12 + t of rows g and 8 + g: fragments of keys as the second operand.
struct KeyTile {
  uint4 pieces[2][4];
  __device__ void load(const Rows& rows, int first, int lane) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const bf16* row = rows[first + n * 8 + lane / 4] + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) pieces[n][i] = request(row + i * 32);
    }
  }
};

// Lane 4 g + t loads the pieces g and 8 + g of rows 2t, 2t + 1, 8 + 2t, 9 + 2t: fragments of values, two rows to be zipped.
struct ValueTile {
  uint4 pieces[2][4];
  __device__ void load(const Rows& rows, int first, int lane) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const bf16* row = rows[first + r / 2 * 8 + lane % 4 * 2 + r % 2] + lane / 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) pieces[half][r] = request(row + half * 64);
    }
  }
};

// A warp's running result for its rows: heads 0 to 3 are with lanes 0 to 15 (head lane / 4), the other lanes carry zeros.
struct Running {
  float values[2][8][4] = {};  // [half of the head][j]: dimensions 64 half + 16 t + j and 8 more
  float maximum = -1e30f, sum = 0;
};

__device__ inline void scores_of(const uint4 (&q)[4], const KeyTile& keys, int rows_left, int lane, float (&score)[2][2]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_add(c, q[i].x, q[i].y, keys.pieces[n][i].x, keys.pieces[n][i].y);
      multiply_add(c, q[i].z, q[i].w, keys.pieces[n][i].z, keys.pieces[n][i].w);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) score[n][i] = n * 8 + lane % 4 * 2 + i < rows_left ? c[i] * scale_log2 : -1e30f;
  }
}

// exp2 weights of a tile's scores, packed as the first operand; older results are scaled down when a new maximum asks for it.
__device__ inline void weigh(Running& running, const float (&score)[2][2], unsigned (&weights)[2]) {
  float top = fmaxf(fmaxf(score[0][0], score[0][1]), fmaxf(score[1][0], score[1][1]));
  top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 1));
  top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 2));
  if (__any_sync(0xFFFFFFFF, top > running.maximum)) {
    const float higher = fmaxf(top, running.maximum), decay = exp2f(running.maximum - higher);
    running.maximum = higher;
    running.sum *= decay;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) running.values[half][j][i] *= decay;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float low = exp2f(score[n][0] - running.maximum), high = exp2f(score[n][1] - running.maximum);
    running.sum += low + high;
    weights[n] = device::narrow_bf16(low, high);
  }
}

__device__ inline void add_values(Running& running, const unsigned (&weights)[2], const ValueTile& tile) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const unsigned zip = j % 2 == 0 ? 0x5410 : 0x7632;
      multiply_add(running.values[half][j], weights[0], weights[1],
                   __byte_perm(word(tile.pieces[half][0], j / 2), word(tile.pieces[half][1], j / 2), zip),
                   __byte_perm(word(tile.pieces[half][2], j / 2), word(tile.pieces[half][3], j / 2), zip));
    }
}

// Joins the warps' results of a head (online softmax); each lane gets four dimensions.
__device__ inline float4 join(const Partial (&parts)[warps], int head, int lane, float& sum) {
  float4 values{};
  float maximum = -1e30f;
  for (const Partial& part : parts) maximum = fmaxf(maximum, part.maximum[head]);
  for (const Partial& part : parts) {
    const float weight = exp2f(part.maximum[head] - maximum);
    const float4 other = *reinterpret_cast<const float4*>(&part.values[head][lane * 4]);
    sum += weight * part.sum[head];
    values.x += weight * other.x, values.y += weight * other.y, values.z += weight * other.z, values.w += weight * other.w;
  }
  return values;
}

// One step of attention for one KV head (blockIdx.x) of one sequence (blockIdx.y). The newest row comes from the step's input and
// is also written into the cache.
static __global__ __launch_bounds__(threads, 2) void decode_kernel(StepInput in, KvCache cache, int length, bf16* out) {
  __shared__ Partial shared[warps];
  const int head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rows = length + 1;
  const std::size_t in_cache = sequence * cache.sequence_elements + head * head_dim;
  const std::size_t in_step = static_cast<std::size_t>(sequence) * row_elements + head * head_dim;
  const std::size_t in_queries = (static_cast<std::size_t>(sequence) * q_heads + head * group) * head_dim;
  const Rows key_rows{cache.k + in_cache, in.k_row + in_step, length};
  const Rows value_rows{cache.v + in_cache, in.v_row + in_step, length};

  int row = warp * tile_rows;
  KeyTile keys;
  ValueTile values;
  keys.load(key_rows, row, lane);
  values.load(value_rows, row, lane);
  uint4 q[4] = {};
  if (lane / 4 < group) {
    const bf16* from = in.q + in_queries + lane / 4 * head_dim + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = *reinterpret_cast<const uint4*>(from + i * 32);
  }

  Running running;
  for (; row < rows; row += warps * tile_rows) {
    float score[2][2];
    unsigned weights[2];
    scores_of(q, keys, rows - row, lane, score);
    keys.load(key_rows, row + warps * tile_rows, lane);
    weigh(running, score, weights);
    add_values(running, weights, values);
    values.load(value_rows, row + warps * tile_rows, lane);
  }
  if (warp == 0) {
    const std::size_t to = in_cache + static_cast<std::size_t>(length) * row_elements + lane % 16 * 8;
    const bf16* fresh = (lane < 16 ? in.k_row : in.v_row) + in_step + lane % 16 * 8;
    *reinterpret_cast<uint4*>((lane < 16 ? cache.k : cache.v) + to) = *reinterpret_cast<const uint4*>(fresh);
  }

  running.sum += __shfl_xor_sync(0xFFFFFFFF, running.sum, 1);
  running.sum += __shfl_xor_sync(0xFFFFFFFF, running.sum, 2);
  if (lane / 4 < group) {
    Partial& mine = shared[warp];
    mine.maximum[lane / 4] = running.maximum;
    mine.sum[lane / 4] = running.sum;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) mine.values[lane / 4][half * 64 + lane % 4 * 16 + i * 8 + j] = running.values[half][j][i];
  }
  __syncthreads();
  float sum = 0;
  const float4 all = join(shared, warp, lane, sum);
  *reinterpret_cast<uint2*>(out + in_queries + warp * head_dim + lane * 4) =
      make_uint2(device::narrow_bf16(all.x / sum, all.y / sum), device::narrow_bf16(all.z / sum, all.w / sum));
}

}  // namespace aisp::decode
