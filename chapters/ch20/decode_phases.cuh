// SPDX-License-Identifier: Apache-2.0
// The five phases of a decoder layer at batch 1, for kernels of their own and for one kernel that has them all. A warp adds up a
// row of weights, always in the same order, so that all who call these get the same bits.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/exponential.cuh>
#include <aisp/device/fence.cuh>

#include <cstddef>

#include "rows.cuh"

namespace aisp::ch20::token {

using shared::bf16, shared::packet;

constexpr int threads = 256, warps = threads / device::warp_size;
constexpr int in_flight = 8;  // packets of 16 bytes that a lane has requested
constexpr int head_size = 64, head_packets = head_size / packet, group = 4, pieces = 16;
constexpr float epsilon = 1e-5f;

struct Network {
  const bf16* norms;                                  // [2 layers + 1][hidden]
  const uint4 *qkv, *o, *gate_up, *down, *head;       // [layer][outputs][inputs]; the head has one layer
  const float* angles;                                // [position][head_size]
  bf16 *k, *v;                                        // [layer][KV head][context + 1][head_size]
  const bf16* embedded;                               // [hidden]: the token's row of the table
  int layers, hidden, kv_heads, ffn, words, context;  // context: tokens before this one
  __host__ __device__ int heads() const { return kv_heads * group; }
  __host__ __device__ int q_columns() const { return heads() * head_size; }
  __host__ __device__ int qkv_columns() const { return (heads() + 2 * kv_heads) * head_size; }
  __device__ std::size_t cache_row(int layer, int kv_head, int row) const {
    return ((static_cast<std::size_t>(layer) * kv_heads + kv_head) * (context + 1) + row) * head_size;
  }
};
struct Activations {
  float* x;                  // [hidden]: the residual
  bf16 *q, *attended;        // [heads][head_size]
  bf16* active;              // [ffn]
  float* values;             // [head][piece][head_size]
  float2* sums;              // [head][piece]: maximum and sum
  unsigned* tickets;         // [KV head], and one of the head: 0 between steps
  float* logits;             // [words]
  unsigned long long* best;  // 0 between steps
  int* next;
};

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ float multiply_add(unsigned a, unsigned x, float sum) {
  return fmaf(high(a), high(x), fmaf(low(a), low(x), sum));
}
__device__ __forceinline__ float multiply_add(const uint4& a, const uint4& x, float sum) {
  return multiply_add(a.w, x.w, multiply_add(a.z, x.z, multiply_add(a.y, x.y, multiply_add(a.x, x.x, sum))));
}

// The residual: before the first layer's attention it is the token's row of the table.
struct Residual {
  float* x;
  const bf16* row;  // null: x is there
  __device__ __forceinline__ float at(int i) const { return row != nullptr ? __bfloat162float(row[i]) : __ldcg(x + i); }
};
__device__ __forceinline__ Residual residual(const Network& n, const Activations& a, bool is_first) {
  return {a.x, is_first ? n.embedded : nullptr};
}

// RMSNorm of the residual, of at most 2048 columns, into shared memory, by the first `threads` of a block; all of it take part in
// the barriers.
__device__ inline void normalize(const Residual& x, const bf16* weights, int hidden, uint4* to, float* sums) {
  const int i = static_cast<int>(threadIdx.x);
  const bool takes_part = i < hidden / packet && i < threads;
  float values[packet], squares = 0;
  if (takes_part)
#pragma unroll
    for (int j = 0; j < packet; ++j) {
      values[j] = x.at(i * packet + j);
      squares = fmaf(values[j], values[j], squares);
    }
  const float scale = rsqrtf(device::block_sum(squares, sums) / static_cast<float>(hidden) + epsilon);
  if (takes_part) {
    float weight[packet];
    shared::unpack(reinterpret_cast<const uint4*>(weights)[i], weight);
#pragma unroll
    for (int j = 0; j < packet; ++j) values[j] *= scale * weight[j];
    to[i] = shared::pack(values);
  }
  __syncthreads();
}

// Two neighbouring rows of the projection, of which every lane has its part: queries and keys are turned, keys and values go into
// the cache.
__device__ __forceinline__ void store_qkv(const Network& n, const Activations& a, int layer, int pair, float first,
                                          float second) {
  first = device::warp_sum(first), second = device::warp_sum(second);
  if (threadIdx.x % device::warp_size != 0) return;
  const int row = 2 * pair, head = row / head_size, column = row % head_size;
  if (head < n.heads() + n.kv_heads) {
    const float2 turn = *reinterpret_cast<const float2*>(n.angles + static_cast<std::size_t>(n.context) * head_size + column);
    const float turned = first * turn.x - second * turn.y;
    second = second * turn.x + first * turn.y;
    first = turned;
  }
  const int of_cache = head - n.heads();
  bf16* const to = of_cache < 0
                       ? a.q + row
                       : (of_cache < n.kv_heads ? n.k : n.v) + n.cache_row(layer, of_cache % n.kv_heads, n.context) + column;
  *reinterpret_cast<unsigned*>(to) = device::narrow_bf16(first, second);
}
__device__ __forceinline__ void store_residual(const Residual& from, float* x, int row, float sum) {
  sum = device::warp_sum(sum);
  if (threadIdx.x % device::warp_size == 0) x[row] = from.at(row) + sum;
}
__device__ __forceinline__ void store_active(const Activations& a, int row, float gate, float up) {
  gate = device::warp_sum(gate), up = device::warp_sum(up);
  if (threadIdx.x % device::warp_size == 0)
    a.active[row] = __float2bfloat16_rn(gate * up * __fdividef(1, 1 + device::exp2_approximate(-shared::log2_e * gate)));
}
// Keeps a logit; `best` is ordered as logits are, then as words from the last to the first.
__device__ __forceinline__ void store_logit(const Activations& a, int word, float sum, unsigned long long& best) {
  sum = device::warp_sum(sum);
  const unsigned bits = __float_as_uint(sum + 0.0f), ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  const unsigned long long key = static_cast<unsigned long long>(ordered) << 32 | static_cast<unsigned>(~word);
  best = key > best ? key : best;
  if (threadIdx.x % device::warp_size == 0) a.logits[word] = sum;
}
// By all threads of all blocks: the last block to come knows the token.
__device__ inline void choose(const Network& n, const Activations& a, unsigned long long best, unsigned long long* shared_best) {
  best = device::block_reduce(best, 0ull, device::Max{}, shared_best);
  if (threadIdx.x != 0) return;
  atomicMax(a.best, best);
  __threadfence();
  if (atomicInc(a.tickets + n.kv_heads, gridDim.x - 1) != gridDim.x - 1) return;
  *a.next = static_cast<int>(~static_cast<unsigned>(atomicExch(a.best, 0ull)));
}

struct AttentionMemory {
  float values[warps][group][head_size];
  float2 sums[warps][group];
};

// 2 to the power of how much a state with the maximum `from` is below one with the maximum `to`.
__device__ __forceinline__ float below(float from, float to) {
  return from == -__builtin_huge_valf() ? 0 : device::exp2_approximate(from - to);
}

// One piece of the keys of one KV head: its four heads by the first `threads` of a block. The last piece of a head to be done
// merges them all.
__device__ inline void attend(const Network& n, const Activations& a, int layer, int kv_head, int piece,
                              AttentionMemory& shared) {
  constexpr float minus_infinity = -__builtin_huge_valf();
  constexpr float scale_log2 = 1.4426950408889634f / 8;
  constexpr int lanes = head_packets, keys = device::warp_size / lanes;  // of a key; that a warp takes at once
  __shared__ bool is_last;
  const int warp = static_cast<int>(threadIdx.x) / device::warp_size, lane = static_cast<int>(threadIdx.x) % device::warp_size;
  const int all = n.context + 1, of_piece = (all + pieces - 1) / pieces;
  const int begin = piece * of_piece, end = begin + of_piece < all ? begin + of_piece : all;
  if (warp < warps) {
    uint4 q[group];
    float maximum[group], sum[group] = {}, value[group][packet] = {};
#pragma unroll
    for (int h = 0; h < group; ++h) {
      q[h] = __ldcg(reinterpret_cast<const uint4*>(a.q) + (kv_head * group + h) * head_packets + lane % lanes);
      maximum[h] = minus_infinity;
    }
    const std::size_t first = n.cache_row(layer, kv_head, 0) / packet + lane % lanes;
    const uint4 *const k = reinterpret_cast<const uint4*>(n.k) + first, *const v = reinterpret_cast<const uint4*>(n.v) + first;
#pragma unroll 1
    for (int key = begin + warp * keys + lane / lanes; key - lane / lanes < end; key += warps * keys) {
      const bool is_there = key < end;
      const uint4 own_k = is_there ? __ldcg(k + key * head_packets) : uint4{},
                  own_v = is_there ? __ldcg(v + key * head_packets) : uint4{};
      float of_k[packet], of_v[packet];
      shared::unpack(own_k, of_k);
      shared::unpack(own_v, of_v);
#pragma unroll
      for (int h = 0; h < group; ++h) {
        float of_q[packet], score = 0;
        shared::unpack(q[h], of_q);
#pragma unroll
        for (int j = 0; j < packet; ++j) score = fmaf(of_q[j], of_k[j], score);
        score = device::warp_sum<lanes>(score) * scale_log2;
        if (!is_there) score = minus_infinity;
        const float raised = fmaxf(maximum[h], score), factor = below(maximum[h], raised), weight = below(score, raised);
        maximum[h] = raised;
        sum[h] = fmaf(sum[h], factor, weight);
#pragma unroll
        for (int j = 0; j < packet; ++j) value[h][j] = fmaf(weight, of_v[j], value[h][j] * factor);
      }
    }
    // The warp's four groups of lanes, then its place in shared memory.
#pragma unroll
    for (int h = 0; h < group; ++h) {
      float raised = maximum[h];
#pragma unroll
      for (int offset = lanes; offset < device::warp_size; offset *= 2)
        raised = fmaxf(raised, __shfl_xor_sync(~0u, raised, offset));
      const float factor = below(maximum[h], raised);
      sum[h] *= factor;
#pragma unroll
      for (int offset = lanes; offset < device::warp_size; offset *= 2) sum[h] += __shfl_xor_sync(~0u, sum[h], offset);
#pragma unroll
      for (int j = 0; j < packet; ++j) {
        value[h][j] *= factor;
#pragma unroll
        for (int offset = lanes; offset < device::warp_size; offset *= 2)
          value[h][j] += __shfl_xor_sync(~0u, value[h][j], offset);
        if (lane < lanes) shared.values[warp][h][lane * packet + j] = value[h][j];
      }
      if (lane == 0) shared.sums[warp][h] = make_float2(raised, sum[h]);
    }
  }
  __syncthreads();
  const int h = static_cast<int>(threadIdx.x) / head_size, column = static_cast<int>(threadIdx.x) % head_size;
  const int head = kv_head * group + h;
  static_assert(threads == group * head_size);
  if (warp < warps) {
    float maximum = minus_infinity, sum = 0, value = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) maximum = fmaxf(maximum, shared.sums[w][h].x);
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const float factor = below(shared.sums[w][h].x, maximum);
      sum = fmaf(shared.sums[w][h].y, factor, sum);
      value = fmaf(shared.values[w][h][column], factor, value);
    }
    __stcg(a.values + (head * pieces + piece) * head_size + column, value);
    if (column == 0) __stcg(a.sums + head * pieces + piece, make_float2(maximum, sum));
    __threadfence();
  }
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(a.tickets + kv_head, pieces - 1) == pieces - 1;
  __syncthreads();
  if (!is_last || warp >= warps) return;
  __threadfence();
  constexpr int at_once = pieces / 2;  // as many as there are registers for
  float maximum = minus_infinity, sum = 0, value = 0;
#pragma unroll 1
  for (int begin = 0; begin < pieces; begin += at_once) {
    float2 sums[at_once];
    float values[at_once], raised = maximum;
#pragma unroll
    for (int p = 0; p < at_once; ++p) {
      sums[p] = __ldcg(a.sums + head * pieces + begin + p);
      values[p] = __ldcg(a.values + (head * pieces + begin + p) * head_size + column);
      raised = fmaxf(raised, sums[p].x);
    }
    const float before = below(maximum, raised);
    sum *= before, value *= before, maximum = raised;
#pragma unroll
    for (int p = 0; p < at_once; ++p) {
      const float factor = below(sums[p].x, maximum);
      sum = fmaf(sums[p].y, factor, sum);
      value = fmaf(values[p], factor, value);
    }
  }
  a.attended[head * head_size + column] = __float2bfloat16_rn(value / sum);
}

}  // namespace aisp::ch20::token
