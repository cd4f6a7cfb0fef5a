// SPDX-License-Identifier: Apache-2.0
// Attention of one decoding step over a cache of narrow codes. Tokens are the 16 rows of mma.sync and the query heads of a group
// its 8 columns, so that a code becomes f16 once for all heads, half as many products are wasted as with heads as rows, and a
// thread has half the sums. Scales that tokens share go into queries and results, those of a token into its weights.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

#include "decode.cuh"
#include "int4_codes.cuh"

namespace aisp::attention {

constexpr int narrow_head = 128;  // elements of a head

__device__ __forceinline__ uint4 request_16(const void* from) { return request(static_cast<const bf16*>(from)); }
__device__ __forceinline__ int at_most(int row, int last) { return row < last ? row : last; }

// A group's queries as second operands: piece i are the words 4 i to 4 i + 3 of a lane. Words in shared memory are asked for
// again in every step: not kept, they leave registers to the rows under way.
struct QueriesInRegisters {
  static constexpr bool shared = false;
  uint4 words[4];
  __device__ __forceinline__ void keep(uint4*, int piece, const uint4& of) { words[piece] = of; }
  __device__ __forceinline__ uint4 piece(const uint4*, int i) const { return words[i]; }
};
struct QueriesInShared {
  static constexpr bool shared = true;
  __device__ __forceinline__ void keep(uint4* memory, int piece, const uint4& of) {
    if (threadIdx.x < 32) memory[piece * 32 + threadIdx.x] = of;  // of all warps
  }
  __device__ __forceinline__ uint4 piece(const uint4* memory, int i) const {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(device::shared_address(memory + i * 32 + threadIdx.x % 32)));
    return v;
  }
};

// e4m3, with a scale for the keys and one for the values of each KV head. Heads have `capacity` rows of 128 bytes.
struct E4m3Cache {
  using Queries = QueriesInRegisters;
  const std::uint8_t *k, *v;
  const float *k_scales, *v_scales;
  int heads, capacity;

  // A warp's step of 16 tokens. Lane 4 g + t has the 16-byte pieces t and 4 + t of the keys g and 8 + g, and piece g of the
  // values 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t.
  struct Tile {
    static constexpr int tokens = 16;
    uint4 keys[2][2], values[4];

    __device__ __forceinline__ void request_keys(const E4m3Cache& cache, std::size_t head, int first, int end) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          keys[n][i] = request_16(cache.k + (head * cache.capacity + at_most(first + n * 8 + g(), end - 1)) * narrow_head +
                                  t() * 16 + i * 64);
    }
    __device__ __forceinline__ void request_values(const E4m3Cache& cache, std::size_t head, int first, int end) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values[i] = request_16(
            cache.v + (head * cache.capacity + at_most(first + i / 2 * 8 + t() * 2 + i % 2, end - 1)) * narrow_head + g() * 16);
    }
    template <class Piece>
    __device__ __forceinline__ void score(float (&scores)[4], const Piece& q) const {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const unsigned upper = word(keys[0][i / 4], i % 4), lower = word(keys[1][i / 4], i % 4);
        const unsigned a[4] = {device::widen_e4m3(upper), device::widen_e4m3(lower), device::widen_e4m3(upper >> 16),
                               device::widen_e4m3(lower >> 16)};
        device::mma_f16(scores, a, word(q(i / 2), i % 2 * 2), word(q(i / 2), i % 2 * 2 + 1));
      }
    }
    __device__ __forceinline__ void scale_weights(float (&)[4]) const {}
    __device__ __forceinline__ void add_values(float (&sums)[8][4], const unsigned (&weights)[1][2]) const {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned zip = j % 2 == 0 ? 0x5140 : 0x7362;  // of two tokens: dimension 2 j, then 2 j + 1
        const unsigned left = __byte_perm(word(values[0], j / 2), word(values[1], j / 2), zip);
        const unsigned right = __byte_perm(word(values[2], j / 2), word(values[3], j / 2), zip);
        const unsigned a[4] = {device::widen_e4m3(left), device::widen_e4m3(left >> 16), device::widen_e4m3(right),
                               device::widen_e4m3(right >> 16)};
        device::mma_f16(sums[j], a, weights[0][0], weights[0][1]);
      }
    }

   private:
    __device__ __forceinline__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
    __device__ __forceinline__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
  };

  // The dimension of element `half` of word i of a lane's queries.
  __device__ __forceinline__ static int dimension(int i, int half) {
    return i / 8 * 64 + static_cast<int>(threadIdx.x) % 4 * 16 + i % 8 * 2 + half;
  }
  __device__ __forceinline__ float key_factor(int head) const { return k_scales[head]; }
  __device__ __forceinline__ float value_factor(int head) const { return v_scales[head]; }
};

// INT4 in words of int4_codes.cuh. A channel of the keys has a scale for each 32 tokens, which its queries are multiplied by; the
// values have one a token, which its weights are. Heads have `capacity` tokens, a multiple of 32. Behind the last token of a
// group the values' scales must not be NaN.
template <class Expand>
struct Int4Cache {
  using Queries = QueriesInShared;
  const unsigned *k, *v;            // k: [token][16], eight dimensions a word; v: [token / 2][32], two tokens' four dimensions
  const half *k_scales, *v_scales;  // k: [token / 32][128], as int4_scale_place says; v: [token], as int4_token_place says
  int heads, capacity;

  // A warp's step of 32 tokens. Lane 4 g + t has 16 bytes of the keys g, 8 + g, 16 + g, 24 + g, their scales, and of the values
  // 2 t and 2 t + 1 and those 8, 16, 24 further on 16 dimensions.
  struct Tile {
    static constexpr int tokens = int4_group;
    uint4 keys[4], scales[4], values[4];
    uint2 value_scales;

    __device__ __forceinline__ void request_keys(const Int4Cache& cache, std::size_t head, int first, int end) {
      const int group = at_most(first, end - 1) / int4_group;
      const half* const of_group =
          cache.k_scales + (head * (cache.capacity / int4_group) + group) * narrow_head + t() * (narrow_head / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        keys[i] = request_16(cache.k + (head * cache.capacity + at_most(first + i * 8 + g(), end - 1)) * 16 + t() * 4);
        scales[i] = *reinterpret_cast<const uint4*>(of_group + i * 8);
      }
    }
    __device__ __forceinline__ void request_values(const Int4Cache& cache, std::size_t head, int first, int end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] =
            request_16(cache.v + (head * (cache.capacity / 2) + at_most(first / 2 + i * 4 + t(), (end - 1) / 2)) * 32 + g() * 4);
      }
      const int group = at_most(first, end - 1) / int4_group;
      value_scales = *reinterpret_cast<const uint2*>(cache.v_scales + head * cache.capacity + group * int4_group + g() * 4);
    }
    template <class Piece>
    __device__ __forceinline__ void score(float (&scores)[8], const Piece& q) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 of_q = q(i);
        unsigned x[4][4];
#pragma unroll
        for (int n = 0; n < 4; ++n) Expand::of(word(keys[n], i), x[n]);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const unsigned b0 = product(word(of_q, 2 * s), word(scales[i], 2 * s)),
                         b1 = product(word(of_q, 2 * s + 1), word(scales[i], 2 * s + 1));
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            const unsigned a[4] = {x[2 * block][2 * s], x[2 * block + 1][2 * s], x[2 * block][2 * s + 1],
                                   x[2 * block + 1][2 * s + 1]};
            device::mma_f16(&scores[4 * block], a, b0, b1);
          }
        }
      }
    }
    __device__ __forceinline__ void scale_weights(float (&weights)[8]) const {
#pragma unroll
      for (int i = 0; i < 8; i += 4) {
        const float2 by = __half22float2(reinterpret_cast<const __half2&>(i == 0 ? value_scales.x : value_scales.y));
        weights[i] *= by.x, weights[i + 1] *= by.x, weights[i + 2] *= by.y, weights[i + 3] *= by.y;
      }
    }
    __device__ __forceinline__ void add_values(float (&sums)[8][4], const unsigned (&weights)[2][2]) const {
#pragma unroll
      for (int block = 0; block < 2; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          unsigned left[4], right[4];
          Expand::of(word(values[2 * block], i), left);
          Expand::of(word(values[2 * block + 1], i), right);
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const unsigned a[4] = {left[2 * s], left[2 * s + 1], right[2 * s], right[2 * s + 1]};
            device::mma_f16(sums[2 * i + s], a, weights[block][0], weights[block][1]);
          }
        }
    }

   private:
    __device__ __forceinline__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
    __device__ __forceinline__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
    __device__ __forceinline__ static unsigned product(unsigned x, unsigned y) {
      const __half2 xy = __hmul2(reinterpret_cast<const __half2&>(x), reinterpret_cast<const __half2&>(y));
      return reinterpret_cast<const unsigned&>(xy);
    }
  };

  __device__ __forceinline__ static int dimension(int i, int half) {
    return static_cast<int>(threadIdx.x) % 4 * 32 + i / 4 * 8 + i % 4 + half * 4;
  }
  __device__ __forceinline__ float key_factor(int) const { return Expand::unit; }
  __device__ __forceinline__ float value_factor(int) const { return Expand::unit; }
};

// Updates a thread's scores, of which elements i belong to head 2 t + i % 2; `rows` are these two heads. As online_softmax, but
// each thread decides by its own tokens whether a maximum is outgrown.
template <int count>
__device__ __forceinline__ bool online_softmax_of_columns(float (&scores)[count], Rows& rows, float scale, float (&factor)[2]) {
  constexpr float slack = 8;
  float maximum[2] = {scores[0], scores[1]};
#pragma unroll
  for (int i = 2; i < count; ++i) maximum[i % 2] = fmaxf(maximum[i % 2], scores[i]);
  const bool outgrown =
      __any_sync(~0u, (maximum[0] - rows.maximum[0]) * scale > slack || (maximum[1] - rows.maximum[1]) * scale > slack);
  if (outgrown) {
#pragma unroll
    for (int of = 4; of < 32; of *= 2)
#pragma unroll
      for (float& x : maximum) x = fmaxf(x, __shfl_xor_sync(~0u, x, of));
    raise(rows, maximum, scale, factor);
  }
  const float offset[2] = {base_of(rows.maximum[0]) * scale, base_of(rows.maximum[1]) * scale};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    scores[i] = device::exp2_approximate(fmaf(scores[i], scale, -offset[i % 2]));
    rows.sum[i % 2] += scores[i];
  }
  return outgrown;
}

// blockIdx.x: the KV head; blockIdx.y: the piece, which has a key. Groups of at most 8 heads.
template <int group, class Cache, class Splits, class Out>
__global__ __launch_bounds__(decode_threads,
                             4) void narrow_decode_kernel(const __grid_constant__ Decode<Cache, Splits, Out> work) {
  using S = DecodeShape<narrow_head, group>;
  using Tile = typename Cache::Tile;
  static_assert(group <= 8);
  __shared__ DecodePartial<S> parts[decode_warps];
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.x);
  const std::size_t head = static_cast<std::size_t>(piece.sequence) * work.cache.heads + kv_head;
  const auto output_row = [&](std::size_t of, int row) { return of * work.heads + kv_head * group + row; };

  Tile tile;
  int first = piece.begin + warp * Tile::tokens;
  if (first < piece.end) {
    tile.request_keys(work.cache, head, first, piece.end);
    tile.request_values(work.cache, head, first, piece.end);
  }
  __shared__ uint4 shared_q[Cache::Queries::shared ? 4 * 32 : 1];
  typename Cache::Queries q;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned words[4] = {};
    const bf16* const from = work.q + output_row(piece.sequence, g) * narrow_head;
    if (g < group) {
#pragma unroll
      for (int n = 4 * i; n < 4 * i + 4; ++n)
        words[n % 4] = device::narrow_f16(widened(from[Cache::dimension(n, 0)]), widened(from[Cache::dimension(n, 1)]));
    }
    q.keep(shared_q, i, uint4{words[0], words[1], words[2], words[3]});
  }
  if (Cache::Queries::shared) __syncthreads();
  const float scale = work.scale_log2 * work.cache.key_factor(kv_head);
  float sums[8][4] = {};
  Rows rows;
  for (; first < piece.end; first += decode_warps * Tile::tokens) {
    constexpr int blocks = Tile::tokens / 16;
    const int following = first + decode_warps * Tile::tokens;
    float scores[4 * blocks] = {}, factor[2];
    tile.score(scores, [&](int i) { return q.piece(shared_q, i); });
    tile.request_keys(work.cache, head, following, piece.end);
    if (first + Tile::tokens > piece.end) {
#pragma unroll
      for (int i = 0; i < 4 * blocks; ++i)
        if (first + i / 2 * 8 + g >= piece.end) scores[i] = -infinity;
    }
    if (online_softmax_of_columns(scores, rows, scale, factor)) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[j][i] *= factor[i % 2];
    }
    tile.scale_weights(scores);
    unsigned weights[blocks][2];
#pragma unroll
    for (int i = 0; i < 2 * blocks; ++i)
      weights[i / 2][i % 2] = device::transpose_matrix(device::narrow_f16(scores[2 * i], scores[2 * i + 1]));
    tile.add_values(sums, weights);
    tile.request_values(work.cache, head, following, piece.end);
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int of = 4; of < 32; of *= 2) rows.sum[i] += __shfl_xor_sync(~0u, rows.sum[i], of);
    const int row = t * 2 + i;
    if (row >= group) continue;
    if (g == 0) parts[warp].maximum[row] = rows.maximum[i] * scale, parts[warp].sum[row] = rows.sum[i];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int n = 0; n < 2; ++n) parts[warp].values[row][g * 16 + 2 * j + n] = sums[j][2 * n + i];
  }
  __syncthreads();
  for (int row = warp; row < group; row += decode_warps) {
    float values[narrow_head / 32] = {}, maximum = -infinity, sum = 0;
    join<S>(parts, row, lane, values, maximum, sum);
    const std::size_t to = output_row(piece.slot, row);
    store_row(work.o + to * narrow_head + lane * (narrow_head / 32), values, reciprocal(sum) * work.cache.value_factor(kv_head));
    if (work.log_sums != nullptr && lane == 0) work.log_sums[to] = log_sum_exp(maximum, sum, 1);
  }
}

}  // namespace aisp::attention
