// SPDX-License-Identifier: Apache-2.0
// dQ, dK and dV on wgmma (sm_90a): a block keeps 128 keys and their values and recomputes the weights of tile after tile of rows
// from the forward kernel's log-sum-exp. All is transposed, keys as rows, so that weights go from registers into the products for
// dK and dV; of dQ each block adds its part in fp32 in L2.
#pragma once
#include <aisp/device/vector.cuh>

#include "backward_shared.cuh"
#include "forward.cuh"

namespace aisp::attention {

// A consumer warpgroup's view of the block's shared memory, and its registers.
template <class S>
struct KeyConsumer {
  BackwardShared<S>& shared;
  int index;  // of the warpgroup
  Step<S::stages> step;
  float scores[32], d_p[32], d_k[S::head_size / 2], d_v[S::head_size / 2];
  unsigned p[4][4], d_s[4][4];

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) % warpgroup; }
  // Return this thread's first row (a key of the tile) and its first column (a query row).
  __device__ __forceinline__ int key() const { return index * 64 + thread() / 32 * 16 + thread() % 32 / 4; }
  __device__ __forceinline__ static int column() { return thread() % 4 * 2; }
  __device__ __forceinline__ void sync() const { device::named_barrier_sync(2 + index, warpgroup); }
  __device__ __forceinline__ static void release(std::uint64_t* empty) {
    if (threadIdx.x % 32 == 0) device::barrier_arrive(empty);
  }

  // d = A B^T for this warpgroup's 64 keys of A and the 64 rows of B, over all columns. Asynchronous, as the next.
  __device__ __forceinline__ void start_scores(float (&d)[32], bf16 (&keys)[S::boxes][tile_keys * 64],
                                               bf16 (&rows)[S::boxes][S::rows * 64]) {
    const std::uint64_t a = device::operand(keys[0] + index * 64 * 64), b = device::operand(rows[0]);
    device::wgmma_touch(d);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::head_size / 16; ++i)
      multiply<Major::k>(d, device::advance(a, i / 4 * tile_keys * 128 + i % 4 * 32),
                         device::advance(b, i / 4 * S::rows * 128 + i % 4 * 32), i > 0);
    device::wgmma_commit();
  }
  // d += A B for A of 64 keys by 64 rows in registers.
  __device__ __forceinline__ static void start_sums(float (&d)[S::head_size / 2], const unsigned (&a)[4][4],
                                                    bf16 (&rows)[S::boxes][S::rows * 64]) {
    const std::uint64_t b = device::operand(rows[0], 1024, S::rows * 128);
    device::wgmma_touch(d);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<Major::mn>(d, a[i], device::advance(b, i * 2048), true);
    device::wgmma_commit();
  }
  // Its part of dQ, 64 rows by 64 columns: dS K, where dS lies with its keys as rows.
  __device__ __forceinline__ void start_d_q(float (&d)[32]) {
    const int turn = step.count % 2;
    const int box = S::by_columns ? index : 0, first_key = S::by_columns ? 0 : index * 64;
    const std::uint64_t a = device::operand(shared.d_s[turn][S::by_columns ? 0 : index], 1024, 64 * 128);
    const std::uint64_t b = device::operand(shared.k[box] + first_key * 64, 1024, tile_keys * 128);
    device::wgmma_touch(d);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < (S::by_columns ? tile_keys : 64) / 16; ++i)
      device::wgmma<device::Operands::bf16, Major::mn, Major::mn>(d, device::advance(a, i * 2048), device::advance(b, i * 2048),
                                                                  i > 0);
    device::wgmma_commit();
  }
  // The weights, transposed, from the scores.
  template <class Work>
  __device__ __forceinline__ void weigh(const Work& work, const KeyBlock& block, int tile, bool tested) {
    const float scale = work.scale * log2_e;
    const float(&log_sums)[S::rows] = shared.log_sums[step.slot()];
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      const float2 log_sum = *reinterpret_cast<const float2*>(&log_sums[j / 4 * 8 + column()]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[j + i] = device::exp2_approximate(fmaf(scores[j + i], scale, -(i % 2 == 0 ? log_sum.x : log_sum.y)));
    }
    if (!tested) return;
    const Lengths lengths = work.lengths.lengths(block.sequence);
#pragma unroll
    for (int j = 0; j < 16; ++j) {  // columns
      const Span seen = work.mask.keys_of(tile * S::rows + j / 2 * 8 + column() + j % 2, lengths);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int of_element = block.first_key + key() + half * 8;
        if (of_element < seen.begin || of_element >= seen.end) scores[j / 2 * 4 + half * 2 + j % 2] = 0;
      }
    }
  }
  // dS = P (dP - delta)
  __device__ __forceinline__ void derive() {
    const float(&deltas)[S::rows] = shared.deltas[step.slot()];
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      const float2 delta = *reinterpret_cast<const float2*>(&deltas[j / 4 * 8 + column()]);
#pragma unroll
      for (int i = 0; i < 4; ++i) d_p[j + i] = scores[j + i] * (d_p[j + i] - (i % 2 == 0 ? delta.x : delta.y));
    }
  }
  __device__ __forceinline__ static unsigned fragment(int i) {
    const int lane = thread() % 32, row = thread() / 32 * 16 + lane % 16;
    return static_cast<unsigned>(row * 128 + ((i * 2 + lane / 16) ^ row % 8) * 16);
  }
  // dS to where the products for dQ read it, by both warpgroups when each takes columns. What was there two turns ago has been
  // read: a warpgroup came here last turn only after its products of the turn before.
  __device__ __forceinline__ void share_d_s() {
    bf16* const to = shared.d_s[step.count % 2][index];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::store_matrices(device::shared_address(to) + fragment(i), d_s[i][0], d_s[i][1], d_s[i][2], d_s[i][3]);
    device::fence_proxy_async_shared();
    if constexpr (S::by_columns) device::named_barrier_sync(1, 2 * warpgroup);
    else sync();
  }
  // Adds 64 rows by 64 columns to dQ's sums; with `in_order` after the blocks of all earlier keys.
  template <bool in_order, class Work>
  __device__ __forceinline__ void add_d_q(const float (&d)[32], const Work& work, const KeyBlock& block, int head, int tile) {
    const int t = thread();
    if (t == 0) device::wait_stores_read<0>();
    sync();
#pragma unroll
    for (int i = 0; i < 8; ++i)
      *reinterpret_cast<float4*>(&shared.d_q[index][(i * warpgroup + t) * 4]) =
          float4{d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
    device::fence_proxy_async_shared();
    sync();
    if (t != 0) return;
    const std::size_t chunk = work.tile(block.sequence, head, tile) * S::chunks + (S::by_columns ? index : 0);
    if constexpr (in_order) {
      const Lengths lengths = work.lengths.lengths(block.sequence);
      int before = block.first_key / tile_keys;
      while (before > 0 && seen_of(work.mask, tile * 64, (before - 1) * tile_keys, lengths).any) --before;
      const int earlier = block.first_key / tile_keys - before;
      const unsigned turn = static_cast<unsigned>(S::by_columns ? earlier : earlier * 2 + index);
      while (device::load_acquire_gpu(work.added + chunk) != turn) {
      }
      device::fence_proxy_async();
    }
    device::bulk_add_f32(work.d_q_sums + chunk * S::chunk_elements, shared.d_q[index], sizeof(shared.d_q[index]));
    device::commit_stores();
    if constexpr (in_order) {
      device::wait_stores<0>();
      device::fence_proxy_async();
      device::add_release_gpu(work.added + chunk, 1);
    }
  }
  // The same from the registers, as they come.
  template <class Work>
  __device__ __forceinline__ void add_d_q_directly(const float (&d)[32], const Work& work, const KeyBlock& block, int head,
                                                   int tile) const {
    const std::size_t chunk = work.tile(block.sequence, head, tile) * S::chunks + (S::by_columns ? index : 0);
    float* const to = work.d_q_sums + chunk * S::chunk_elements + thread() * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) device::add_to_global(to + i * warpgroup * 4, d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
  }
  // dK or dV of this warpgroup's keys over what lay there.
  __device__ __forceinline__ void store(const CUtensorMap& map, const float (&d)[S::head_size / 2],
                                        bf16 (&to)[S::boxes][tile_keys * 64], const KeyBlock& block) {
#pragma unroll
    for (int i = 0; i < S::head_size / 16; ++i) {
      unsigned words[4];
      narrow(words, d, i);
      device::store_matrices(device::shared_address(to[i / 4] + index * 64 * 64) + fragment(i % 4), words[0], words[1], words[2],
                             words[3]);
    }
    device::fence_proxy_async_shared();
    sync();
    if (thread() != 0) return;
    for (int i = 0; i < S::boxes; ++i)
      device::tensor_store_4d(&map, i * 64, block.first_key + index * 64, block.kv_head, block.sequence, to[i] + index * 64 * 64);
    device::commit_stores();
  }
};

template <class S, bool in_order, bool staged, class Work>
__device__ __forceinline__ void consume(BackwardShared<S>& shared, const BackwardMaps& maps, const Work& work,
                                        const KeyBlock& block) {
  KeyConsumer<S> own{shared, static_cast<int>(threadIdx.x) / warpgroup - 1, {}, {}, {}, {}, {}, {}, {}};
  device::barrier_wait(&shared.kv_full, 0);
  each_row_tile(work, block, [&](int head, int tile, bool tested) {
    const unsigned slot = own.step.slot(), parity = own.step.parity();
    device::barrier_wait(&shared.q_full[slot], parity);
    own.start_scores(own.scores, shared.k, shared.q[slot]);
    device::barrier_wait(&shared.d_o_full[slot], parity);
    own.start_scores(own.d_p, shared.v, shared.d_o[slot]);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.scores);
    own.weigh(work, block, tile, tested);
#pragma unroll
    for (int i = 0; i < 4; ++i) narrow(own.p[i], own.scores, i);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.d_p);
    own.derive();
#pragma unroll
    for (int i = 0; i < 4; ++i) narrow(own.d_s[i], own.d_p, i);
    own.start_sums(own.d_v, own.p, shared.d_o[slot]);
    own.share_d_s();
    float d_q[32];
    own.start_d_q(d_q);
    own.start_sums(own.d_k, own.d_s, shared.q[slot]);
    device::wgmma_wait<1>();
    device::wgmma_touch(own.d_v);
    device::wgmma_touch(d_q);
    own.release(&shared.d_o_empty[slot]);
    if constexpr (staged) own.template add_d_q<in_order>(d_q, work, block, head, tile);
    else own.add_d_q_directly(d_q, work, block, head, tile);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.d_k);
    own.release(&shared.q_empty[slot]);
    ++own.step.count;
  });
#pragma unroll
  for (float& x : own.d_k) x *= work.scale;
  device::named_barrier_sync(1, 2 * warpgroup);  // nobody reads K any more
  own.store(maps.d_k, own.d_k, shared.k, block);
  own.store(maps.d_v, own.d_v, shared.v, block);
  if (own.thread() == 0) device::wait_stores_read<0>();
}

// A block for each tile of keys of each KV head. in_order: dQ's parts are added in the order of the keys, so that equal inputs
// give equal bits; then blocks are numbered as they begin, and wait only for those before them. staged: they are added by bulk
// copies from shared memory, otherwise by the consumers' own instructions.
template <int head_size, class Mask, bool in_order, class Blocks = HeadsInTurn, bool staged = true>
__global__ __launch_bounds__(forward_threads, 1) void backward_kernel(const __grid_constant__ BackwardMaps maps,
                                                                      const __grid_constant__ Backward<Mask> work) {
  static_assert(staged || !in_order);
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = BackwardShape<head_size>;
  BackwardShared<S>& shared = *reinterpret_cast<BackwardShared<S>*>(memory);
  if (in_order && threadIdx.x == 0) shared.block = static_cast<int>(atomicAdd(work.begun, 1u));
  initialize(shared);
  const KeyBlock block = Blocks::block(work, in_order ? shared.block : static_cast<int>(blockIdx.x));
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<24>();
    if (threadIdx.x == 0) produce(shared, maps, work, block);
  } else {
    device::take_registers<240>();
    consume<S, in_order, staged>(shared, maps, work, block);
  }
}

}  // namespace aisp::attention
