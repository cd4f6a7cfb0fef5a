// SPDX-License-Identifier: Apache-2.0
// Decoding fed by bulk copies (sm_90): the last warp asks for tiles of 64 rows, which arrive in a ring in shared memory, and the
// others have 16 rows of each tile. Products and their order are those of the attention engine's decode_kernel, so results are
// equal in every bit.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>

#include "decode_reference.hpp"

namespace aisp::ch18 {

constexpr int ring_stages = 3, ring_warps = attention::decode_warps, ring_threads = (ring_warps + 1) * 32;
constexpr int ring_rows = ring_warps * attention::decode_tile;

struct Ring {
  alignas(128) bf16 k[ring_stages][ring_rows * head_size], v[ring_stages][ring_rows * head_size];
  std::uint64_t full[ring_stages], empty[ring_stages];
};
template <int group>
struct RingBlock {
  Ring ring;
  attention::DecodePartial<attention::DecodeShape<head_size, group>> parts[ring_warps];
};

// Rows that lie one behind the other.
struct InOnePiece {
  const bf16 *k, *v;
  std::size_t head_elements;  // of a KV head of a sequence

  // By a warp, whose lane 0 has told the barrier of the bytes.
  __device__ __forceinline__ void load(Ring& ring, int slot, int first, int rows, int sequence, int head, int lane) const {
    if (lane != 0) return;
    const std::size_t from = (std::size_t(sequence) * kv_heads + head) * head_elements + std::size_t(first) * head_size;
    const unsigned bytes = static_cast<unsigned>(rows) * head_size * sizeof(bf16);
    device::bulk_load(ring.k[slot], k + from, bytes, &ring.full[slot]);
    device::bulk_load(ring.v[slot], v + from, bytes, &ring.full[slot]);
  }
};
// In pages of [head][row]: a copy for each page, or part of one where pages are longer than a tile.
template <int page_size>
struct InPages {
  const bf16 *k, *v;
  const int* table;
  int table_stride;

  __device__ __forceinline__ void load(Ring& ring, int slot, int first, int rows, int sequence, int head, int lane) const {
    constexpr int step = page_size < ring_rows ? page_size : ring_rows;
    for (int row = lane * step; row < rows; row += 32 * step) {
      const std::size_t page = table[std::size_t(sequence) * table_stride + (first + row) / page_size];
      const std::size_t from = ((page * kv_heads + head) * page_size + (first + row) % page_size) * head_size;
      const unsigned bytes = static_cast<unsigned>(min(step, rows - row)) * head_size * sizeof(bf16);
      device::bulk_load(&ring.k[slot][row * head_size], k + from, bytes, &ring.full[slot]);
      device::bulk_load(&ring.v[slot][row * head_size], v + from, bytes, &ring.full[slot]);
    }
  }
};

// blockIdx.x: the KV head; blockIdx.y: the sequence.
template <int group, class Rows>
__global__ __launch_bounds__(ring_threads) void ring_decode_kernel(Rows cache, const bf16* q, bf16* o, const int* lengths,
                                                                   float scale_log2) {
  using S = attention::DecodeShape<head_size, group>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& block = *reinterpret_cast<RingBlock<group>*>(memory);
  Ring& ring = block.ring;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int sequence = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x), length = lengths[sequence];
  const int tiles = (length + ring_rows - 1) / ring_rows;
  const std::size_t first_row = (std::size_t(sequence) * kv_heads + head) * group;
  if (threadIdx.x == 0) {
    for (int i = 0; i < ring_stages; ++i)
      device::barrier_init(&ring.full[i], 1), device::barrier_init(&ring.empty[i], ring_warps);
    device::fence_barrier_init();
  }
  __syncthreads();
  const auto rows_of = [&](int tile) { return min(ring_rows, length - tile * ring_rows); };
  if (warp == ring_warps) {
    for (int tile = 0; tile < tiles; ++tile) {
      const int slot = tile % ring_stages, rows = rows_of(tile);
      device::barrier_wait(&ring.empty[slot], (tile / ring_stages + 1) % 2);
      if (lane == 0)
        device::barrier_arrive_expect(&ring.full[slot], 2 * static_cast<unsigned>(rows) * head_size * unsigned{sizeof(bf16)});
      __syncwarp();
      cache.load(ring, slot, tile * ring_rows, rows, sequence, head, lane);
    }
  } else {
    attention::DecodeWarp<S> own;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < S::pieces; ++i) {
        const int row = lane / 4 + half * 8;
        own.q[half][i] = uint4{0, 0, 0, 0};
        if (row < group)
          own.q[half][i] = *reinterpret_cast<const uint4*>(q + (first_row + row) * head_size + lane % 4 * 8 + i * 32);
      }
#pragma unroll
    for (int i = 0; i < S::halves * 32; ++i) own.values[i / 32][i / 4 % 8][i % 4] = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int slot = tile % ring_stages, first = warp * attention::decode_tile, rows = rows_of(tile);
      device::barrier_wait(&ring.full[slot], tile / ring_stages % 2);
      if (first < rows) {
        // Rows behind the last are the last once more: what lies there in shared memory may be NaN.
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < S::pieces; ++i) {
            const int row = min(first + n * 8 + lane / 4, rows - 1);
            own.keys[n][i] = *reinterpret_cast<const uint4*>(&ring.k[slot][row * head_size + lane % 4 * 8 + i * 32]);
          }
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int half = 0; half < S::halves; ++half) {
            const int row = min(first + r / 2 * 8 + lane % 4 * 2 + r % 2, rows - 1);
            own.tile[half][r] = *reinterpret_cast<const uint4*>(&ring.v[slot][row * head_size + lane / 4 * 8 + half * 64]);
          }
      }
      __syncwarp();
      if (lane == 0) device::barrier_arrive(&ring.empty[slot]);
      if (first >= rows) continue;
      float scores[8] = {}, factor[2];
      own.score(scores);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= rows) scores[i] = -attention::infinity;
      if (attention::online_softmax(scores, own.rows, scale_log2, factor)) own.rescale_values(factor);
      unsigned weights[4];
      attention::narrow(weights, scores, 0);
      own.add_values(weights);
    }
    attention::whole_sums(own.rows);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      if (row >= group) continue;
      block.parts[warp].maximum[row] = own.rows.maximum[half] * scale_log2;
      block.parts[warp].sum[row] = own.rows.sum[half];
#pragma unroll
      for (int i = 0; i < S::halves * 16; ++i)
        block.parts[warp].values[row][i / 16 * 64 + lane % 4 * 16 + i % 16] = own.values[i / 16][i % 8][half * 2 + i / 8 % 2];
    }
  }
  __syncthreads();
  for (int row = warp; row < group && warp < ring_warps; row += ring_warps) {
    float values[head_size / 32] = {}, maximum = -attention::infinity, sum = 0;
    attention::join<S>(block.parts, row, lane, values, maximum, sum);
    attention::store_row(o + (first_row + row) * head_size + lane * (head_size / 32), values, attention::reciprocal(sum));
  }
}

}  // namespace aisp::ch18
