// SPDX-License-Identifier: Apache-2.0
// Rows of keys and values on their way into a cache: as bf16, as e4m3 with given scales, and as INT4 whose scales follow from the
// rows. What appends one row also fills a whole cache.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "attention/int4_codes.cuh"
#include "quantized_rows.cuh"

namespace aisp::ch19 {

using shared::bf16, shared::packet;
constexpr int head_size = 128, kv_heads = 8, head_packets = head_size / packet;
constexpr int append_threads = 128;
constexpr float largest_int4 = 7, least_int4_maximum = 7 * 0x1p-14f;  // so that a scale is a normal f16

// Rows of a tensor, as uint4 pieces: `rows` to a head, of which `first` is the first one meant.
struct RowsOf {
  const bf16 *k, *v;
  int rows;
};

static __global__ __launch_bounds__(append_threads) void append_bf16_kernel(RowsOf from, bf16* k, bf16* v, int capacity, int row,
                                                                            int heads) {
  const int i = static_cast<int>(blockIdx.x * append_threads + threadIdx.x), head = i / (2 * head_packets),
            piece = i % head_packets;
  if (head >= heads) return;
  const bool is_key = i / head_packets % 2 == 0;
  reinterpret_cast<uint4*>(is_key ? k : v)[(std::size_t(head) * capacity + row) * head_packets + piece] =
      reinterpret_cast<const uint4*>(is_key ? from.k : from.v)[std::size_t(head) * head_packets + piece];
}

// Keys lie as rows. Values do, too, or in pages of 128 tokens, each [dimension][token].
struct E4m3Rows {
  std::uint8_t *k, *v;
  const float *k_scales, *v_scales;  // of KV heads
  int capacity;                      // tokens of a head, whole pages
  bool pages;
};
// All rows of `from` are the cache's rows from `first` on. A thread has eight elements; blockIdx.y: keys or values.
static __global__ __launch_bounds__(append_threads) void append_e4m3_kernel(RowsOf from, E4m3Rows to, int first, int heads) {
  const std::size_t i = std::size_t{blockIdx.x} * append_threads + threadIdx.x, row = i / head_packets;
  const int piece = static_cast<int>(i % head_packets), head = static_cast<int>(row / from.rows);
  if (head >= heads) return;
  const bool is_key = blockIdx.y == 0;
  const float scale = (is_key ? to.k_scales : to.v_scales)[head % kv_heads];
  float x[packet];
  shared::unpack(reinterpret_cast<const uint4*>(is_key ? from.k : from.v)[i], x);
#pragma unroll
  for (float& value : x) value /= scale;  // as the reference does, in every bit
  const uint2 codes = pack_e4m3(x, 1);
  const int token = first + static_cast<int>(row % from.rows);
  if (is_key || !to.pages) {
    const std::size_t at = (std::size_t(head) * to.capacity + token) * head_packets + piece;
    reinterpret_cast<uint2*>(is_key ? to.k : to.v)[at] = codes;
  } else {
    std::uint8_t* const at =
        to.v + (std::size_t(head) * to.capacity + token / head_size * head_size + piece * packet) * head_size + token % head_size;
#pragma unroll
    for (int d = 0; d < packet; ++d) at[d * head_size] = static_cast<std::uint8_t>((d < 4 ? codes.x : codes.y) >> d % 4 * 8);
  }
}

// As attention/decode_narrow.cuh has them.
struct Int4Rows {
  unsigned *k, *v;
  half *k_scales, *v_scales;
  int capacity;  // tokens of a head, whole groups
};
__device__ __forceinline__ int int4_code(float x, float scale) {
  return static_cast<int>(fminf(fmaxf(rintf(x / scale), -largest_int4), largest_int4));
}
__device__ __forceinline__ half int4_scale(float maximum) {
  return __float2half_rn(fmaxf(maximum, least_int4_maximum) / largest_int4);
}

// By a block of 128 threads, one a channel: the first `count` rows of a group, which begin at `rows`.
template <class Codes>
__device__ __forceinline__ void quantize_keys(const bf16* rows, int count, const Int4Rows& to, std::size_t head, int group) {
  constexpr int tokens = attention::int4_group, words = head_size / 8;
  __shared__ std::int8_t codes[tokens][head_size];
  const int d = static_cast<int>(threadIdx.x);
  float x[tokens], maximum = 0;
#pragma unroll
  for (int r = 0; r < tokens; ++r) {
    x[r] = r < count ? __bfloat162float(rows[r * head_size + d]) : 0;
    maximum = fmaxf(maximum, fabsf(x[r]));
  }
  const half scale = int4_scale(maximum);
  to.k_scales[(head * (to.capacity / tokens) + group) * head_size + attention::int4_scale_place(d)] = scale;
#pragma unroll
  for (int r = 0; r < tokens; ++r) codes[r][d] = static_cast<std::int8_t>(int4_code(x[r], __half2float(scale)));
  __syncthreads();
  for (int i = d; i < tokens * words; i += head_size) {
    unsigned word = 0;
    for (int k = 0; k < 8; ++k) word |= Codes::bits(codes[i / words][i % words * 8 + k], k);
    to.k[(head * to.capacity + group * tokens) * words + i] = word;
  }
}

// By a warp: a token, whose neighbour in the words stays as it is.
template <class Codes>
__device__ __forceinline__ void quantize_values(const bf16* row, const Int4Rows& to, std::size_t head, int token) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float x[4], maximum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x[k] = __bfloat162float(row[lane * 4 + k]);
    maximum = fmaxf(maximum, fabsf(x[k]));
  }
  const half scale = int4_scale(device::warp_max(maximum));
  if (lane == 0) to.v_scales[head * to.capacity + attention::int4_token_place(token)] = scale;
  unsigned& word = to.v[(head * (to.capacity / 2) + token / 2) * 32 + lane];
  unsigned bits = word;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int place = token % 2 * 4 + k;
    bits = (bits & ~Codes::mask(place)) | Codes::bits(int4_code(x[k], __half2float(scale)), place);
  }
  word = bits;
}

// A block has a group of a head: blockIdx.x and blockIdx.y.
template <class Codes>
__global__ __launch_bounds__(append_threads) void fill_int4_kernel(RowsOf from, Int4Rows to) {
  const int group = static_cast<int>(blockIdx.x), first = group * attention::int4_group;
  const int count = min(attention::int4_group, from.rows - first);
  const std::size_t head = blockIdx.y, begin = (head * from.rows + first) * head_size;
  quantize_keys<Codes>(from.k + begin, count, to, head, group);
  if (threadIdx.x >= count && threadIdx.x < attention::int4_group)
    to.v_scales[head * to.capacity + attention::int4_token_place(first + threadIdx.x)] = __float2half_rn(0);
  for (int pair = static_cast<int>(threadIdx.x) / 32; pair * 2 < count; pair += append_threads / 32)
    for (int token = pair * 2; token < min(pair * 2 + 2, count); ++token)
      quantize_values<Codes>(from.v + begin + token * head_size, to, head, first + token);
}

// One row of each head. A channel's scale is known when its group is full, so that the keys of the group that is being filled are
// kept as bf16 beside ([head][32][128]) and quantized anew with every row. blockIdx.x: the head.
template <class Codes>
__global__ __launch_bounds__(append_threads) void append_int4_kernel(RowsOf from, bf16* open_group, Int4Rows to, int token) {
  constexpr int tokens = attention::int4_group;
  const std::size_t head = blockIdx.x;
  bf16* const rows = open_group + head * tokens * head_size;
  rows[token % tokens * head_size + threadIdx.x] = from.k[head * head_size + threadIdx.x];  // read by the same thread alone
  quantize_keys<Codes>(rows, token % tokens + 1, to, head, token / tokens);
  if (threadIdx.x < 32) quantize_values<Codes>(from.v + head * head_size, to, head, token);
}

}  // namespace aisp::ch19
