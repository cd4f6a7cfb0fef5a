// SPDX-License-Identifier: Apache-2.0
// The kernels of a decoder besides products and attention: embedding, residual and RMSNorm, RoPE and the write into the cache,
// SwiGLU, and the greedy choice. Each result depends on its own row alone.
#pragma once
#include <aisp/device/fence.cuh>

#include "attention/cache.cuh"
#include "batch.hpp"
#include "rows.cuh"

namespace aisp::decoder {

constexpr int norm_threads = 256, append_threads = 128, swiglu_threads = 256, choose_threads = 1024;
constexpr float norm_epsilon = 1e-5f;

// x[row] = the token's row of the table, or x + delta; normed[row] = x / rms(x) * weight. A block to each row; of the rows that
// `chosen` names, where it is not null.
struct Norm {
  const int* tokens;  // of each row; null: x is there
  const bf16* table;  // [token][hidden]
  const bf16* delta;  // what the layer's half has computed; null: nothing to add
  bf16 *x, *normed;
  const bf16* weight;
  const int* chosen;  // rows, whose results stand one after the other; null: all
  int hidden;
};
static __global__ __launch_bounds__(norm_threads) void norm_kernel(Norm work) {
  constexpr int most = 4;  // packets of a thread: rows of up to 8192
  __shared__ float sums[device::largest_block_in_warps];
  const int packets = work.hidden / shared::packet;
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const std::size_t row = work.chosen != nullptr ? static_cast<std::size_t>(work.chosen[blockIdx.x]) : blockIdx.x;
  uint4* const x = reinterpret_cast<uint4*>(work.x) + row * packets;
  const uint4* const from =
      work.tokens != nullptr ? reinterpret_cast<const uint4*>(work.table) + static_cast<std::size_t>(work.tokens[row]) * packets
                             : x;
  const uint4* const delta = reinterpret_cast<const uint4*>(work.delta) + row * packets;
  uint4 kept[most];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * norm_threads;
    if (at >= packets) break;
    kept[i] = from[at];
    float own[shared::packet];
    shared::unpack(kept[i], own);
    if (work.delta != nullptr) {
      float more[shared::packet];
      shared::unpack(delta[at], more);
#pragma unroll
      for (int j = 0; j < shared::packet; ++j) own[j] += more[j];
      kept[i] = shared::pack(own);
      shared::unpack(kept[i], own);
    }
    if (work.tokens != nullptr || work.delta != nullptr) x[at] = kept[i];
    sum += shared::sum_of_squares(own);
  }
  const float scale = rsqrtf(device::block_sum(sum, sums) / static_cast<float>(work.hidden) + norm_epsilon);
#pragma unroll
  for (int i = 0; i < most; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * norm_threads;
    if (at >= packets) break;
    float own[shared::packet], weight[shared::packet];
    shared::unpack(kept[i], own);
    shared::unpack(reinterpret_cast<const uint4*>(work.weight)[at], weight);
#pragma unroll
    for (int j = 0; j < shared::packet; ++j) own[j] = own[j] * scale * weight[j];
    reinterpret_cast<uint4*>(work.normed)[blockIdx.x * static_cast<std::size_t>(packets) + at] = shared::pack(own);
  }
}

// Rotates queries in place and keys on their way into the cache, where values go, too: pairs of neighbours, as `angles` has the
// cosine and sine of each position and pair. A block to each row; rows of padding are not cached.
template <class Cache>
struct Append {
  bf16* qkv;  // [row][heads + 2 kv_heads][head_size]
  Cache cache;
  const int *sequences, *positions;
  const float* angles;  // [position][head_size]: cosine and sine of each pair
  int heads, kv_heads, head_size;
};
__device__ __forceinline__ uint4 rotated(const uint4& bits, const float4 (&by)[2]) {
  float x[shared::packet], y[shared::packet];
  const float turns[shared::packet] = {by[0].x, by[0].y, by[0].z, by[0].w, by[1].x, by[1].y, by[1].z, by[1].w};
  shared::unpack(bits, x);
#pragma unroll
  for (int i = 0; i < shared::packet; i += 2) {
    y[i] = __fmaf_rn(x[i], turns[i], -__fmul_rn(x[i + 1], turns[i + 1]));
    y[i + 1] = __fmaf_rn(x[i + 1], turns[i], __fmul_rn(x[i], turns[i + 1]));
  }
  return shared::pack(y);
}
template <class Cache>
__global__ __launch_bounds__(append_threads) void append_kernel(const __grid_constant__ Append<Cache> work) {
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const int row = static_cast<int>(blockIdx.x), sequence = work.sequences[row];
  if (sequence < 0) return;
  const int position = work.positions[row], pieces = work.head_size / shared::packet;
  const int rotated_heads = work.heads + work.kv_heads, all = (rotated_heads + work.kv_heads) * pieces;
  uint4* const own = reinterpret_cast<uint4*>(work.qkv) + static_cast<std::size_t>(row) * all;
  const float4* const angles = reinterpret_cast<const float4*>(work.angles + static_cast<std::size_t>(position) * work.head_size);
  for (int i = static_cast<int>(threadIdx.x); i < all; i += append_threads) {
    const int head = i / pieces, piece = i % pieces;
    uint4 bits = own[i];
    if (head < rotated_heads) bits = rotated(bits, {angles[2 * piece], angles[2 * piece + 1]});
    if (head < work.heads) {
      own[i] = bits;
      continue;
    }
    const bool is_key = head < rotated_heads;
    const std::size_t to =
        work.cache.at(sequence, is_key ? head - work.heads : head - rotated_heads, position) + piece * shared::packet;
    *reinterpret_cast<uint4*>(const_cast<bf16*>(is_key ? work.cache.k : work.cache.v) + to) = bits;
  }
}

// active[row][i] = silu(gate) * up, of [row][gate: ffn, up: ffn].
static __global__ __launch_bounds__(swiglu_threads) void swiglu_kernel(const bf16* gate_up, bf16* active, int ffn) {
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const int packets = ffn / shared::packet, at = static_cast<int>(blockIdx.x * swiglu_threads + threadIdx.x);
  const std::size_t row = blockIdx.y;
  if (at >= packets) return;
  const uint4* const from = reinterpret_cast<const uint4*>(gate_up) + row * 2 * packets + at;
  float gate[shared::packet], up[shared::packet];
  shared::unpack(from[0], gate);
  shared::unpack(from[packets], up);
#pragma unroll
  for (int i = 0; i < shared::packet; ++i)
    gate[i] = gate[i] * up[i] * __fdividef(1, 1 + device::exp2_approximate(-shared::log2_e * gate[i]));
  reinterpret_cast<uint4*>(active)[row * packets + at] = shared::pack(gate);
}

// The index of a row's largest value, of equal ones the lowest. A block to each row that a token is chosen for.
struct Choice {
  int* next;        // [chosen]; also each sequence's token of the next step, where the rows stay the same
  int* positions;   // of rows: moved on by one; null: left alone
  const int* rows;  // that were chosen; with positions alone
};
template <class Value>
__global__ __launch_bounds__(choose_threads) void choose_kernel(const Value* values, int count, Choice to) {
  __shared__ unsigned long long best[device::largest_block_in_warps];
  device::let_dependents_start();
  device::wait_for_previous_kernel();
  const Value* const own = values + static_cast<std::size_t>(blockIdx.x) * count;
  unsigned long long key = 0;  // ordered as the values are, then as indices are from the last to the first; a NaN loses
  for (int i = static_cast<int>(threadIdx.x); i < count; i += choose_threads) {
    const float value = static_cast<float>(own[i]) + 0.0f;  // -0 equals 0
    const unsigned bits = __float_as_uint(value), ordered = value != value              ? 0
                                                            : (bits & 0x80000000u) != 0 ? ~bits
                                                                                        : bits | 0x80000000u;
    const unsigned long long of = static_cast<unsigned long long>(ordered) << 32 | static_cast<unsigned>(~i);
    key = of > key ? of : key;
  }
  key = device::block_reduce(key, 0ull, device::Max{}, best);
  if (threadIdx.x != 0) return;
  to.next[blockIdx.x] = static_cast<int>(~static_cast<unsigned>(key));
  if (to.positions != nullptr) ++to.positions[to.rows[blockIdx.x]];
}

}  // namespace aisp::decoder
