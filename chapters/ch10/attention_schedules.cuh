// SPDX-License-Identifier: Apache-2.0
// In which order a consumer warpgroup of attention on wgmma takes the steps of a block of rows. A schedule leaves the sums of its
// rows in registers and Q's shared memory released.
#pragma once
#include "wgmma_attention.cuh"

namespace aisp::ch10::attention {

// One after the other: scores, softmax, sums.
struct InOrder {
  __device__ __forceinline__ static void begin(int) {}
  __device__ __forceinline__ static void end(int) {}
  template <bool causal>
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    for (int tile = 0; tile < tiles; ++tile, ++own.step.count) {
      const unsigned slot = own.step.slot(), parity = own.step.parity();
      device::barrier_wait(&shared.k_full[slot], parity);
      own.start_scores<false>(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[slot]);
      if (causal && tile == 0) own.hide_later_keys();
      float factor[2];
      online_softmax(own.scores, rows, factor);
      own.narrow_scores();
      rescale(own.sums, factor);
      device::barrier_wait(&shared.v_full[slot], parity);
      own.start_sums(own.step);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[slot]);
    }
    own.release(&shared.q_empty);
  }
};

// The scores of the next tile are started before the sums of this one; both run while its exponentials are taken, and a warpgroup
// starts its products behind the other's. Deferred: sums are multiplied only when a row has outgrown its maximum by far.
template <bool deferred, bool kept_queries>
struct PingPong {
  __device__ __forceinline__ static void begin(int index) {
    if (index == 1) device::named_barrier_arrive(1, consumers * warpgroup);
  }
  __device__ __forceinline__ static void end(int index) {
    if (index == 0) device::named_barrier_sync(1, consumers * warpgroup);  // takes the last arrival
  }
  template <bool causal>
  __device__ __forceinline__ static void rows_of_block(Consumer& own, int tiles, Rows& rows) {
    Shared& shared = own.shared;
    float factor[2];
    if constexpr (kept_queries) own.keep_queries();
    device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
    own.start_scores<kept_queries>(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.scores);
    own.release(&shared.k_empty[own.step.slot()]);
    if constexpr (kept_queries) own.release(&shared.q_empty);
    if constexpr (causal) own.hide_later_keys();
    online_softmax(own.scores, rows, factor);
    own.narrow_scores();
    for (int tile = 1; tile < tiles; ++tile) {
      const Step last = own.step;
      ++own.step.count;
      device::barrier_wait(&shared.k_full[own.step.slot()], own.step.parity());
      device::named_barrier_sync(1 + own.index, consumers * warpgroup);
      own.start_scores<kept_queries>(own.step);
      device::barrier_wait(&shared.v_full[last.slot()], last.parity());
      own.start_sums(last);
      device::named_barrier_arrive(2 - own.index, consumers * warpgroup);
      device::wgmma_wait<1>();
      device::wgmma_touch(own.scores);
      own.release(&shared.k_empty[own.step.slot()]);
      bool outgrown = true;
      if constexpr (deferred) outgrown = online_softmax_deferred(own.scores, rows, factor);
      else online_softmax(own.scores, rows, factor);
      device::wgmma_wait<0>();
      device::wgmma_touch(own.sums);
      own.release(&shared.v_empty[last.slot()]);
      own.narrow_scores();
      if (outgrown) rescale(own.sums, factor);
    }
    if constexpr (!kept_queries) own.release(&shared.q_empty);
    device::barrier_wait(&shared.v_full[own.step.slot()], own.step.parity());
    own.start_sums(own.step);
    device::wgmma_wait<0>();
    device::wgmma_touch(own.sums);
    own.release(&shared.v_empty[own.step.slot()]);
    ++own.step.count;
  }
};

}  // namespace aisp::ch10::attention
