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

// The decoding part: every `blocks`-th of the sequences' KV heads from that of the block's number among those from first_block
// on.
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
// A warp's partial result in its ring after a KV head's keys; the maximum is an exponent of 2.
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
//
// `ahead`: a tile's scores are computed among the sums of the one before, in two chains. Tensor cores serve the products of whole
// warpgroups first; what a warp has for the gaps between them should not wait for a product, or for a softmax, of its own.
template <bool ahead>
struct RingWarp {
  MixedShared& shared;
  const RingDecode& work;
  unsigned used = 0;  // tiles of this warp's ring
  unsigned q[head_size / 16][2];
  float sums[head_size / 16][4], maximum[2], sum[2];

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) % attention::warpgroup / 32; }
  // Returns the warp's i-th tile of the sequence.
  __device__ __forceinline__ static int tile(int i) { return i * decode_warps_of_block + warp(); }
  __device__ __forceinline__ int tiles() const {
    const int all = (work.keys + ring_keys - 1) / ring_keys;
    return (all - warp() + decode_warps_of_block - 1) / decode_warps_of_block;
  }
  __device__ __forceinline__ DecodeRing& ring() const { return shared.rings[warp()]; }
  __device__ __forceinline__ void load(attention::bf16 (&to)[2][ring_keys * 64], const CUtensorMap& map, std::uint64_t* full,
                                       int i, int head) const {
    if (lane() != 0) return;
    device::barrier_arrive_expect(full, sizeof(to));
    for (int half = 0; half < 2; ++half)
      device::tensor_load_4d(to[half], &map, half * 64, tile(i) * ring_keys, head % kv_heads, head / kv_heads, full);
  }
  // When all lanes have read what was there: the warp's i-th tile of a KV head, the keys before the values.
  __device__ __forceinline__ void load_keys(int i, unsigned slot, int head) const {
    __syncwarp();
    load(ring().k[slot], work.k, &shared.k_full[warp()][slot], i, head);
  }
  __device__ __forceinline__ void load_values(int i, unsigned slot, int head) const {
    __syncwarp();
    load(ring().v[slot], work.v, &shared.v_full[warp()][slot], i, head);
  }
  __device__ __forceinline__ void fill(int all, int head) const {
    for (int i = 0; i < ring_slots && i < all; ++i) {
      load_keys(i, (used + i) % ring_slots, head);
      load_values(i, (used + i) % ring_slots, head);
    }
  }
  __device__ __forceinline__ static unsigned slot_of(unsigned count) { return count % ring_slots; }
  __device__ __forceinline__ void wait_keys(unsigned count) const {
    device::barrier_wait(&shared.k_full[warp()][slot_of(count)], count / ring_slots % 2);
  }
  __device__ __forceinline__ void wait_values(unsigned count) const {
    device::barrier_wait(&shared.v_full[warp()][slot_of(count)], count / ring_slots % 2);
  }

  // The bytes of a tile where this lane of ldmatrix reads columns 16 i: as rows, or as columns.
  __device__ __forceinline__ static unsigned by_rows(int i) {
    const int row = lane() % 16, chunk = i % 4 * 2 + lane() / 16;
    return static_cast<unsigned>(i / 4 * ring_keys * 128 + row * 128 + (chunk ^ row % 8) * 16);
  }
  __device__ __forceinline__ static unsigned by_columns(int i) {
    const int row = lane() / 16 * 8 + lane() % 8, chunk = i % 4 * 2 + lane() / 8 % 2;
    return static_cast<unsigned>(i / 4 * ring_keys * 128 + row * 128 + (chunk ^ row % 8) * 16);
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
  // Turns a tile's scores from tokens as rows to tokens as the depth of the next product.
  __device__ __forceinline__ void finish(float (&scores)[4], int i, unsigned (&weights)[2]) {
    const int first = tile(i) * ring_keys;
    if (first + ring_keys > work.keys) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (first + lane() / 4 + j / 2 * 8 >= work.keys) scores[j] = -attention::infinity;
    }
    weigh(scores);
#pragma unroll
    for (int j = 0; j < 2; ++j) weights[j] = device::transpose_matrix(device::narrow_bf16(scores[2 * j], scores[2 * j + 1]));
  }
  __device__ __forceinline__ void attend(int head) {
    fill(tiles(), head);
    if constexpr (ahead) attend_ahead(head, tiles());
    else attend_in_turn(head, tiles());
  }
  __device__ __forceinline__ void attend_in_turn(int head, int all) {
#pragma unroll 1
    for (int i = 0; i < all; ++i, ++used) {
      const unsigned slot = slot_of(used);
      float scores[4] = {};
      unsigned m[4], weights[2];
      wait_keys(used);
#pragma unroll
      for (int j = 0; j < head_size / 16; ++j) {
        device::load_matrices(m, device::shared_address(ring().k[slot]) + by_rows(j));
        device::mma_bf16(scores, m, q[j][0], q[j][1]);
      }
      if (i + ring_slots < all) load_keys(i + ring_slots, slot, head);
      finish(scores, i, weights);
      wait_values(used);
#pragma unroll
      for (int j = 0; j < head_size / 16; ++j) {
        device::load_matrices_transposed(m, device::shared_address(ring().v[slot]) + by_columns(j));
        device::mma_bf16(sums[j], m, weights[0], weights[1]);
      }
      if (i + ring_slots < all) load_values(i + ring_slots, slot, head);
    }
  }
  template <bool scored, bool valued>
  __device__ __forceinline__ void step(int i, int head, int all, unsigned (&weights)[2]) {
    const unsigned k_slot = slot_of(used + i), v_slot = slot_of(used + i - 1);
    float scores[2][4] = {};
    unsigned m[4], k = device::shared_address(ring().k[k_slot]) + by_rows(0),
                   v = device::shared_address(ring().v[v_slot]) + by_columns(0);
    asm volatile("" : "+r"(k), "+r"(v));
    if (scored) wait_keys(used + i);
    if (valued) wait_values(used + i - 1);
#pragma unroll
    for (int j = 0; j < head_size / 16; ++j) {
      if (scored) {
        device::load_matrices(m, (k ^ j % 4 * 32) + j / 4 * ring_keys * 128);
        device::mma_bf16(scores[j % 2], m, q[j][0], q[j][1]);
      }
      if (valued) {
        device::load_matrices_transposed(m, (v ^ j % 4 * 32) + j / 4 * ring_keys * 128);
        device::mma_bf16(sums[j], m, weights[0], weights[1]);
      }
    }
    if (valued && i - 1 + ring_slots < all) load_values(i - 1 + ring_slots, v_slot, head);
    if (scored) {
      if (i + ring_slots < all) load_keys(i + ring_slots, k_slot, head);
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[0][j] += scores[1][j];
      finish(scores[0], i, weights);
    }
  }
  __device__ __forceinline__ void attend_ahead(int head, int all) {
    if (all == 0) return;
    unsigned weights[2];
    step<true, false>(0, head, all, weights);
#pragma unroll 1
    for (int i = 1; i < all; ++i) step<true, true>(i, head, all, weights);
    step<false, true>(all, head, all, weights);
    used += all;
  }
  __device__ __forceinline__ RingPartial& partial(int of) const {
    static_assert(decode_warps_of_block == mixed_group && sizeof(RingPartial) <= sizeof(DecodeRing));
    return *reinterpret_cast<RingPartial*>(&shared.rings[of]);
  }
  // Through the rings, which are empty: a warp joins what all of them have of one head.
  __device__ __forceinline__ void join(int head) const {
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
    const std::size_t row = static_cast<std::size_t>(head) * mixed_group + warp();
    attention::store_row(work.o + row * head_size + lane() * own, values, attention::reciprocal(whole));
    device::fence_proxy_async_shared();  // before tiles come to where this was
    device::named_barrier_sync(barrier, attention::warpgroup);
  }
  __device__ __forceinline__ void store(int head) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[j] += __shfl_xor_sync(~0u, sum[j], step);
      const int column = lane() % 4 * 2 + j;
      if (column >= mixed_group) continue;
      RingPartial& own = partial(warp());
#pragma unroll
      for (int i = 0; i < head_size / 16; ++i) {
        own.values[column][i * 16 + lane() / 4] = sums[i][j];
        own.values[column][i * 16 + 8 + lane() / 4] = sums[i][j + 2];
      }
      if (lane() < 4) own.maximum[column] = maximum[j] * work.scale_log2, own.sum[column] = sum[j];
    }
    join(head);
  }
};

// `ahead`: how those that decode multiply.
template <bool ahead, class Work>
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
    RingWarp<ahead> own{shared, decode};
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
