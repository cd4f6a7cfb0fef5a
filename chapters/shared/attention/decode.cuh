// SPDX-License-Identifier: Apache-2.0
// Attention of one decoding step: a block reads a piece of the keys and values of one KV head once, for all query heads of its
// group and up to a few query tokens, as the 16 rows of mma.sync (sm_80). Rows go from global memory straight into fragments; the
// order of the head's dimensions within a product is free, so a lane keeps the 16 bytes it loads. What is split over pieces is
// merged in their order, here (MergedByLast) or by a kernel after it (merge.cuh).
#pragma once
#include "cache.cuh"
#include "softmax.cuh"

namespace aisp::attention {

constexpr int decode_threads = 128, decode_warps = decode_threads / 32, decode_tile = 16;  // rows of a warp's step

// `group` query heads to a KV head, `queries` tokens of each sequence: its last ones, each of which sees the keys up to itself.
template <int head_size_, int group_, int queries_ = 1>
struct DecodeShape {
  static constexpr int head_size = head_size_, group = group_, queries = queries_, rows = group * queries;
  static_assert((head_size == 64 || head_size == 128) && rows >= 1 && rows <= 16);
  static constexpr int pieces = head_size / 32;  // of 16 bytes, of a key's row for a lane
  static constexpr int halves = head_size / 64;
};

// A warp's partial result: values weighted, the maximum, and the sum of weights.
template <class S>
struct alignas(16) DecodePartial {
  float values[S::rows][S::head_size], maximum[S::rows], sum[S::rows];
};

template <class Cache, class Splits, class Out>
struct Decode {
  const bf16* q;  // [sequence][query][head][head_size]
  Cache cache;
  Splits splits;
  int heads;         // of queries
  float scale_log2;  // what products are multiplied by, times log2_e
  Out* o;            // [slot][query][head][head_size], bf16 when there is one piece a sequence, else float
  float* log_sums;   // [slot][query][head], natural; or null, but not with MergedByLast
};

// Volatile: the compiler must not move requests after the work they are to overlap.
__device__ __forceinline__ uint4 request(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ unsigned word(const uint4& of, int i) { return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w; }

// A warp's tile of 16 rows and what it has made of those before.
template <class S>
struct DecodeWarp {
  uint4 q[2][S::pieces];          // of the rows lane / 4 and 8 more
  uint4 keys[2][S::pieces];       // lane 4 g + t: the pieces t, 4 + t, ... of rows g and 8 + g
  uint4 tile[S::halves][4];       // the pieces g and 8 + g of rows 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t of the values
  float values[S::halves][8][4];  // [half][j]: dimensions 64 half + 16 t + j and 8 more, of both rows
  Rows rows;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // Rows after the piece's last are the last once more: loads without branches stay in flight together.
  template <class Cache>
  __device__ __forceinline__ void request_keys(const Cache& cache, const Piece& piece, int head, int first) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = first + n * 8 + lane() / 4;
      const bf16* from = cache.k + cache.at(piece.sequence, head, row < piece.end ? row : piece.end - 1) + lane() % 4 * 8;
#pragma unroll
      for (int i = 0; i < S::pieces; ++i) keys[n][i] = request(from + i * 32);
    }
  }
  template <class Cache>
  __device__ __forceinline__ void request_values(const Cache& cache, const Piece& piece, int head, int first) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = first + r / 2 * 8 + lane() % 4 * 2 + r % 2;
      const bf16* from = cache.v + cache.at(piece.sequence, head, row < piece.end ? row : piece.end - 1) + lane() / 4 * 8;
#pragma unroll
      for (int half = 0; half < S::halves; ++half) tile[half][r] = request(from + half * 64);
    }
  }
  // Element 4 n + i: of the key n * 8 + lane % 4 * 2 + i % 2 and the row lane / 4 + i / 2 * 8, as in wgmma's fragments.
  __device__ __forceinline__ void score(float (&scores)[8]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < S::pieces; ++i) {
        const unsigned low[4] = {q[0][i].x, q[1][i].x, q[0][i].y, q[1][i].y},
                       high[4] = {q[0][i].z, q[1][i].z, q[0][i].w, q[1][i].w};
        device::mma_bf16(&scores[4 * n], low, keys[n][i].x, keys[n][i].y);
        device::mma_bf16(&scores[4 * n], high, keys[n][i].z, keys[n][i].w);
      }
  }
  __device__ __forceinline__ void add_values(const unsigned (&weights)[4]) {
#pragma unroll
    for (int half = 0; half < S::halves; ++half)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const unsigned zip = j % 2 == 0 ? 0x5410 : 0x7632;
        device::mma_bf16(values[half][j], weights, __byte_perm(word(tile[half][0], j / 2), word(tile[half][1], j / 2), zip),
                         __byte_perm(word(tile[half][2], j / 2), word(tile[half][3], j / 2), zip));
      }
  }
  __device__ __forceinline__ void rescale_values(const float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < S::halves; ++half)
#pragma unroll
      for (int j = 0; j < 8; ++j) rescale(values[half][j], factor);
  }
};

// Joins the warps' results of a row; each lane gets head_size / 32 dimensions.
template <class S>
__device__ __forceinline__ void join(const DecodePartial<S> (&parts)[decode_warps], int row, int lane,
                                     float (&values)[S::head_size / 32], float& maximum, float& sum) {
  for (const DecodePartial<S>& part : parts) maximum = fmaxf(maximum, part.maximum[row]);
  for (const DecodePartial<S>& part : parts) {
    const float weight = device::exp2_approximate(part.maximum[row] - base_of(maximum));
    sum += weight * part.sum[row];
#pragma unroll
    for (int i = 0; i < S::head_size / 32; ++i) values[i] += weight * part.values[row][lane * (S::head_size / 32) + i];
  }
}

__device__ __forceinline__ void store_row(float* to, const float (&values)[2], float factor) {
  *reinterpret_cast<float2*>(to) = float2{values[0] * factor, values[1] * factor};
}
__device__ __forceinline__ void store_row(float* to, const float (&values)[4], float factor) {
  *reinterpret_cast<float4*>(to) = float4{values[0] * factor, values[1] * factor, values[2] * factor, values[3] * factor};
}
__device__ __forceinline__ void store_row(bf16* to, const float (&values)[2], float factor) {
  *reinterpret_cast<unsigned*>(to) = device::narrow_bf16(values[0] * factor, values[1] * factor);
}
__device__ __forceinline__ void store_row(bf16* to, const float (&values)[4], float factor) {
  *reinterpret_cast<uint2*>(to) = uint2{device::narrow_bf16(values[0] * factor, values[1] * factor),
                                        device::narrow_bf16(values[2] * factor, values[3] * factor)};
}

__device__ __forceinline__ void load_row(const float* from, float (&values)[2]) {
  const float2 v = *reinterpret_cast<const float2*>(from);
  values[0] = v.x, values[1] = v.y;
}
__device__ __forceinline__ void load_row(const float* from, float (&values)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
}

// By a warp that has stored its piece of a row, which is row `row` of each state: once all others have, it merges them in their
// order. Nothing else is left to do then, so that latency counts: several pieces are requested together with their log-sum-exps,
// where merge_row, which has many rows under way, first learns the highest of these.
template <class S, class Cache, class Splits>
__device__ __forceinline__ void merge_if_last(const Decode<Cache, Splits, float>& work, int sequence, int row, int lane) {
  constexpr int columns = S::head_size / 32, at_once = 8;
  const int rows = S::queries * work.heads;
  const std::size_t to = static_cast<std::size_t>(sequence) * rows + row;
  const int first = work.splits.first_state(sequence), last = work.splits.first_state(sequence + 1);
  const unsigned others = static_cast<unsigned>(last - first - 1);
  __syncwarp();
  unsigned before = 0;
  if (lane == 0) {
    __threadfence();
    before = atomicInc(work.splits.tickets + to, others);
    __threadfence();
  }
  if (__shfl_sync(~0u, before, 0) != others) return;
  __syncwarp();

  float maximum = -infinity, sum = 0, values[columns] = {};
  for (int begin = first; begin < last; begin += at_once) {
    float log_sums[at_once], parts[at_once][columns], highest = maximum;
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::size_t at = static_cast<std::size_t>(begin + i < last ? begin + i : last - 1) * rows + row;
      log_sums[i] = work.log_sums[at] * log2_e;
      load_row(work.o + at * S::head_size + lane * columns, parts[i]);
    }
#pragma unroll
    for (const float& log_sum : log_sums) highest = fmaxf(highest, log_sum);
    const float factor = device::exp2_approximate(maximum - base_of(highest));
    sum *= factor;
#pragma unroll
    for (float& value : values) value *= factor;
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const float weight = begin + i < last ? device::exp2_approximate(log_sums[i] - base_of(highest)) : 0;
      sum += weight;
#pragma unroll
      for (int j = 0; j < columns; ++j) values[j] += weight * parts[i][j];
    }
    maximum = highest;
  }
  store_row(work.splits.merged + to * S::head_size + lane * columns, values, reciprocal(sum));
  if (work.splits.merged_log_sums != nullptr && lane == 0) work.splits.merged_log_sums[to] = log_sum_exp(maximum, sum, 1);
}

// How a warp's tile of keys becomes scores: the rows from `first` on. Another one may change the keys or the queries before.
struct ScoreAsTheyAre {
  template <class S>
  __device__ __forceinline__ void operator()(DecodeWarp<S>& own, float (&scores)[8], int) const {
    own.score(scores);
  }
};

// A block's work for a KV head and a piece; `memory` has decode_shared_bytes. A kernel that calls it more than once puts a
// __syncthreads in between.
template <int head_size, int group, int queries, class Cache, class Splits, class Out, class Score = ScoreAsTheyAre>
__device__ __forceinline__ void decode_block(const Decode<Cache, Splits, Out>& work, int kv_head, const Piece& piece,
                                             unsigned char* memory, const Score& score = {}) {
  using S = DecodeShape<head_size, group, queries>;
  DecodePartial<S>(&parts)[decode_warps] = *reinterpret_cast<DecodePartial<S>(*)[decode_warps]>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = DecodeWarp<S>::lane();

  DecodeWarp<S> own;
  int first = piece.begin + warp * decode_tile;
  if (first < piece.end) {
    own.request_keys(work.cache, piece, kv_head, first);
    own.request_values(work.cache, piece, kv_head, first);
  }
  // Row r is of token r / group and head r % group of the KV head's.
  const auto output_row = [&](std::size_t of, int row) {
    return (of * queries + row / group) * work.heads + kv_head * group + row % group;
  };
  int behind[2];  // the key after the last that the thread's rows see
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    behind[half] = work.splits.lengths[piece.sequence] - (queries - 1 - row / group);
    if (behind[half] > piece.end) behind[half] = piece.end;
#pragma unroll
    for (int i = 0; i < S::pieces; ++i) own.q[half][i] = uint4{0, 0, 0, 0};
    if (row >= S::rows) continue;
    const bf16* from = work.q + output_row(piece.sequence, row) * head_size + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < S::pieces; ++i) own.q[half][i] = *reinterpret_cast<const uint4*>(from + i * 32);
  }
#pragma unroll
  for (int i = 0; i < S::halves * 32; ++i) own.values[i / 32][i / 4 % 8][i % 4] = 0;

  for (; first < piece.end; first += decode_warps * decode_tile) {
    const int following = first + decode_warps * decode_tile;
    float scores[8] = {}, factor[2];
    score(own, scores, first);
    own.request_keys(work.cache, piece, kv_head, following);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= behind[i / 2 % 2]) scores[i] = -infinity;
    if (online_softmax(scores, own.rows, work.scale_log2, factor)) own.rescale_values(factor);
    unsigned weights[4];
    narrow(weights, scores, 0);
    own.add_values(weights);
    own.request_values(work.cache, piece, kv_head, following);
  }

  whole_sums(own.rows);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    if (row >= S::rows) continue;
    parts[warp].maximum[row] = own.rows.maximum[half] * work.scale_log2;
    parts[warp].sum[row] = own.rows.sum[half];
#pragma unroll
    for (int i = 0; i < S::halves * 16; ++i)
      parts[warp].values[row][i / 16 * 64 + lane % 4 * 16 + i % 16] = own.values[i / 16][i % 8][half * 2 + i / 8 % 2];
  }
  __syncthreads();
  for (int row = warp; row < S::rows; row += decode_warps) {
    float values[head_size / 32] = {}, maximum = -infinity, sum = 0;
    join<S>(parts, row, lane, values, maximum, sum);
    const std::size_t to = output_row(piece.slot, row);
    store_row(work.o + to * head_size + lane * (head_size / 32), values, reciprocal(sum));
    if (work.log_sums != nullptr && lane == 0) work.log_sums[to] = log_sum_exp(maximum, sum, 1);
    if constexpr (requires { work.splits.tickets; })
      merge_if_last<S>(work, piece.sequence, static_cast<int>(output_row(0, row)), lane);
  }
}

// Blocks of a multiprocessor: with narrow heads more, because each block's rows are fewer bytes on their way.
template <int head_size>
constexpr int decode_blocks = 256 / head_size;

// blockIdx.x: the KV head; blockIdx.y: the piece.
template <int head_size, int group, int queries, class Cache, class Splits, class Out>
__global__ __launch_bounds__(decode_threads, decode_blocks<head_size>) void decode_kernel(
    const __grid_constant__ Decode<Cache, Splits, Out> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Piece piece;
  if (!work.splits.piece(static_cast<int>(blockIdx.y), piece)) return;
  decode_block<head_size, group, queries>(work, static_cast<int>(blockIdx.x), piece, memory);
}

template <int head_size, int group, int queries>
constexpr int decode_shared_bytes = decode_warps* static_cast<int>(sizeof(DecodePartial<DecodeShape<head_size, group, queries>>));

}  // namespace aisp::attention
