// SPDX-License-Identifier: Apache-2.0
// A block of threads that has both kinds of attention (sm_90a): the engine's forward kernel, which waits for tensor cores, and a
// fourth warpgroup that decodes, which waits for memory. Both have their own tiles in shared memory and never meet. To leave the
// fourth one registers and shared memory, queries stay in shared memory and results take their place.
#pragma once
#include "attention/forward.cuh"
#include "decode_reference.hpp"

namespace aisp::ch18 {

struct MixedShape : attention::Shape<head_size, head_size> {
  static constexpr bool queries_in_registers = false, results_over_queries = true;
};
constexpr int mixed_threads = 4 * attention::warpgroup, mixed_group = 4;
constexpr int forward_registers = 192, decode_registers = 104;  // of 512 for four warpgroups; the loading one has 24

// A persistent grid in which only the first `blocks` take rows.
struct SomeBlocksInOrder : attention::InOrder {
  int blocks;
  __device__ __forceinline__ int turns() const { return static_cast<int>(blockIdx.x) < blocks ? InOrder::turns() : 0; }
  __device__ __forceinline__ int next(int turn) const { return turn + blocks; }
};

// What decodes: every `blocks`-th of the sequences' KV heads from that of the block's number among those from first_block on.
struct RingDecode {
  CUtensorMap k, v;  // [sequence][KV head][row], in boxes of 64 columns and ring_keys rows
  const attention::bf16* q;
  attention::bf16* o;  // both [sequence][head]
  int sequences, keys, first_block, blocks;
  float scale_log2;
};

// Each of the four warps has a ring of its own, two tiles of keys and two of values, and takes every fourth tile.
constexpr int ring_keys = 16, ring_slots = 2, decode_warps_of_block = attention::warpgroup / 32;
struct alignas(1024) DecodeRing {
  attention::bf16 k[ring_slots][2][ring_keys * 64], v[ring_slots][2][ring_keys * 64];
};
// What a warp leaves in its ring when a KV head's keys are through.
struct RingPartial {
  float values[mixed_group][head_size], maximum[mixed_group], sum[mixed_group];
};
struct MixedShared {
  attention::Shared<MixedShape> forward;
  DecodeRing rings[decode_warps_of_block];
  std::uint64_t k_full[decode_warps_of_block][ring_slots], v_full[decode_warps_of_block][ring_slots];
};

// Tokens are the 16 rows of mma.sync and the group's heads its 8 columns, half of which are empty: a thread has sums of two
// heads.
struct RingWarp {
  MixedShared& shared;
  const RingDecode& work;
  unsigned used = 0;  // tiles of this warp's ring
  unsigned q[head_size / 16][2];
  float sums[head_size / 16][4], maximum[2], sum[2];

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) % attention::warpgroup / 32; }
  // The bytes of a tile where this lane of ldmatrix reads columns 16 i: as rows, or as columns.
  __device__ __forceinline__ static unsigned by_rows(int i) {
    const int row = lane() % 16, chunk = i % 4 * 2 + lane() / 16;
    return static_cast<unsigned>(i / 4 * ring_keys * 128 + row * 128 + (chunk ^ row % 8) * 16);
  }
  __device__ __forceinline__ static unsigned by_columns(int i) {
    const int row = lane() / 16 * 8 + lane() % 8, chunk = i % 4 * 2 + lane() / 8 % 2;
    return static_cast<unsigned>(i / 4 * ring_keys * 128 + row * 128 + (chunk ^ row % 8) * 16);
  }
  // By one lane: the warp's i-th tile of a KV head.
  __device__ __forceinline__ void load(attention::bf16 (&to)[2][ring_keys * 64], const CUtensorMap& map, std::uint64_t* full,
                                       int i, int head) const {
    device::barrier_arrive_expect(full, sizeof(to));
    for (int half = 0; half < 2; ++half)
      device::tensor_load_4d(to[half], &map, half * 64, (i * decode_warps_of_block + warp()) * ring_keys, head % kv_heads,
                             head / kv_heads, full);
  }
  __device__ __forceinline__ void load_keys(int i, unsigned slot, int head) const {
    load(shared.rings[warp()].k[slot], work.k, &shared.k_full[warp()][slot], i, head);
  }
  __device__ __forceinline__ void load_values(int i, unsigned slot, int head) const {
    load(shared.rings[warp()].v[slot], work.v, &shared.v_full[warp()][slot], i, head);
  }

  // Weights of the tile's scores; element i is of token lane / 4 + i / 2 * 8 and head lane % 4 * 2 + i % 2.
  __device__ __forceinline__ void weigh(float (&scores)[4]) {
    float raised[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      raised[j] = fmaxf(scores[j], scores[j + 2]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) raised[j] = fmaxf(raised[j], __shfl_xor_sync(~0u, raised[j], step));
    }
    constexpr float slack = 8;  // as in online_softmax
    if (__any_sync(~0u,
                   (raised[0] - maximum[0]) * work.scale_log2 > slack || (raised[1] - maximum[1]) * work.scale_log2 > slack)) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        raised[j] = fmaxf(raised[j], maximum[j]);
        const float factor = device::exp2_approximate((maximum[j] - attention::base_of(raised[j])) * work.scale_log2);
        maximum[j] = raised[j];
        sum[j] *= factor;
#pragma unroll
        for (auto& of : sums) of[j] *= factor, of[j + 2] *= factor;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] =
          device::exp2_approximate(fmaf(scores[i], work.scale_log2, -attention::base_of(maximum[i % 2]) * work.scale_log2));
      sum[i % 2] += scores[i];
    }
  }
  __device__ __forceinline__ void begin(int head) {
    const int column = lane() / 4;
#pragma unroll
    for (int i = 0; i < head_size / 16; ++i)
#pragma unroll
      for (int side = 0; side < 2; ++side)
        q[i][side] =
            column < mixed_group
                ? *reinterpret_cast<const unsigned*>(work.q + static_cast<std::size_t>(head * mixed_group + column) * head_size +
                                                     i * 16 + side * 8 + lane() % 4 * 2)
                : 0;
#pragma unroll
    for (auto& of : sums)
#pragma unroll
      for (float& x : of) x = 0;
    maximum[0] = maximum[1] = -attention::infinity;
    sum[0] = sum[1] = 0;
  }
  __device__ __forceinline__ void attend(int head) {
    const int all = (work.keys + ring_keys - 1) / ring_keys,
              tiles = (all - warp() + decode_warps_of_block - 1) / decode_warps_of_block;
    if (lane() == 0)
      for (int i = 0; i < ring_slots && i < tiles; ++i) {
        load_keys(i, (used + i) % ring_slots, head);
        load_values(i, (used + i) % ring_slots, head);
      }
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, ++used) {
      const unsigned slot = used % ring_slots, parity = used / ring_slots % 2;
      const DecodeRing& ring = shared.rings[warp()];
      float scores[4] = {};
      unsigned m[4];
      device::barrier_wait(&shared.k_full[warp()][slot], parity);
#pragma unroll
      for (int j = 0; j < head_size / 16; ++j) {
        device::load_matrices(m, device::shared_address(ring.k[slot]) + by_rows(j));
        device::mma_bf16(scores, m, q[j][0], q[j][1]);
      }
      __syncwarp();
      if (lane() == 0 && i + ring_slots < tiles) load_keys(i + ring_slots, slot, head);
      const int first = (i * decode_warps_of_block + warp()) * ring_keys;
      if (first + ring_keys > work.keys) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (first + lane() / 4 + j / 2 * 8 >= work.keys) scores[j] = -attention::infinity;
      }
      weigh(scores);
      // From tokens as rows to tokens as the depth of the next product.
      const unsigned weights[2] = {device::transpose_matrix(device::narrow_bf16(scores[0], scores[1])),
                                   device::transpose_matrix(device::narrow_bf16(scores[2], scores[3]))};
      device::barrier_wait(&shared.v_full[warp()][slot], parity);
#pragma unroll
      for (int j = 0; j < head_size / 16; ++j) {
        device::load_matrices_transposed(m, device::shared_address(ring.v[slot]) + by_columns(j));
        device::mma_bf16(sums[j], m, weights[0], weights[1]);
      }
      __syncwarp();
      if (lane() == 0 && i + ring_slots < tiles) load_values(i + ring_slots, slot, head);
    }
  }
  // Through the rings, which are empty: a warp joins what all of them have of one head.
  __device__ __forceinline__ void store(int head) {
    static_assert(decode_warps_of_block == mixed_group && sizeof(RingPartial) <= sizeof(DecodeRing));
    const auto partial = [&](int of) -> RingPartial& { return *reinterpret_cast<RingPartial*>(&shared.rings[of]); };
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], step);
      const int column = lane() % 4 * 2 + j;
      if (column >= mixed_group) continue;
#pragma unroll
      for (int i = 0; i < head_size / 16; ++i) {
        partial(warp()).values[column][i * 16 + lane() / 4] = sums[i][j];
        partial(warp()).values[column][i * 16 + 8 + lane() / 4] = sums[i][j + 2];
      }
      if (lane() < 4) partial(warp()).maximum[column] = maximum[j] * work.scale_log2, partial(warp()).sum[column] = sum[j];
    }
    constexpr int barrier = 5, own = head_size / 32;  // the forward kernel has those up to 4
    device::named_barrier_sync(barrier, attention::warpgroup);
    float highest = -attention::infinity, whole = 0, values[own] = {};
    for (int of = 0; of < decode_warps_of_block; ++of) highest = fmaxf(highest, partial(of).maximum[warp()]);
    for (int of = 0; of < decode_warps_of_block; ++of) {
      const float weight = device::exp2_approximate(partial(of).maximum[warp()] - attention::base_of(highest));
      whole += weight * partial(of).sum[warp()];
#pragma unroll
      for (int d = 0; d < own; ++d) values[d] += weight * partial(of).values[warp()][lane() * own + d];
    }
    attention::store_row(work.o + static_cast<std::size_t>(head * mixed_group + warp()) * head_size + lane() * own, values,
                         attention::reciprocal(whole));
    device::fence_proxy_async_shared();  // before tiles come to where this was
    device::named_barrier_sync(barrier, attention::warpgroup);
  }
};

template <class Work>
__global__ __launch_bounds__(mixed_threads, 1) void mixed_kernel(const __grid_constant__ attention::Maps maps,
                                                                 const __grid_constant__ Work forward,
                                                                 const __grid_constant__ RingDecode decode) {
  extern __shared__ __align__(1024) unsigned char memory[];
  MixedShared& shared = *reinterpret_cast<MixedShared*>(memory);
  if (threadIdx.x == 0)
    for (int i = 0; i < decode_warps_of_block * ring_slots; ++i) {
      device::barrier_init(&shared.k_full[i / ring_slots][i % ring_slots], 1);
      device::barrier_init(&shared.v_full[i / ring_slots][i % ring_slots], 1);
    }
  attention::initialize(shared.forward);
  const int warpgroup = static_cast<int>(threadIdx.x) / attention::warpgroup;
  if (warpgroup == 0) {
    device::give_up_registers<24>();
    if (threadIdx.x < 32) attention::produce(shared.forward, maps, forward);
  } else if (warpgroup == 3) {
    device::give_up_registers<decode_registers>();
    RingWarp own{shared, decode};
    const int first = static_cast<int>(blockIdx.x) - decode.first_block;
    if (first >= 0)
      for (int head = first; head < decode.sequences * kv_heads; head += decode.blocks) {
        own.begin(head);
        own.attend(head);
        own.store(head);
      }
  } else {
    device::take_registers<forward_registers>();
    attention::consume<MixedShape, Work, false>(shared.forward, maps, forward);
  }
}

}  // namespace aisp::ch18
