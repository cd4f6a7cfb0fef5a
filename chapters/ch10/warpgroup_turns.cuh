// SPDX-License-Identifier: Apache-2.0
// The "ping-pong" of two consumer warpgroups: each has tiles of its own, and multiplies while the other is in its epilogue. The
// ring's stages come in the order of the tiles, so that each passes over those of the other's.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/warpgroup.cuh>

namespace aisp::ch10::warpgroup_turns {

using wgmma_gemm::warpgroup_threads, wgmma_gemm::Cursor;

// Barrier 1 + w is met by warpgroup w, which waits, and the other one, which lets it go on.
__device__ __forceinline__ void wait_for_turn(int warpgroup) { device::named_barrier_sync(1 + warpgroup, 2 * warpgroup_threads); }
__device__ __forceinline__ void give_turn_to(int warpgroup) {
  device::named_barrier_arrive(1 + warpgroup, 2 * warpgroup_threads);
}

// Past the stages of a tile that the other warpgroup reads.
template <class R>
__device__ __forceinline__ void skip(Cursor<R>& at, int steps) {
  const int end = at.stage + steps;
  at.phase ^= end / R::stages & 1;
  at.stage = end % R::stages;
}

// A whole tile by one warpgroup, in parts of 64 rows; `free(stage)` gives a stage back. When the last products are queued the
// other warpgroup may queue its first.
template <class R, int parts, class Free>
__device__ __forceinline__ void multiply_own_tile(R& ring, Cursor<R>& at, int steps, bool pass_on, int other,
                                                  float (&sums)[parts][R::tile_n / 2], const Free& free) {
  int previous = -1;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    device::wgmma_fence();
#pragma unroll
    for (int part = 0; part < parts; ++part) wgmma_gemm::multiply_stage(ring, at.stage, part * 64, sums[part], step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (previous >= 0) free(previous);
    previous = at.stage;
    at.next();
  }
  if (pass_on) give_turn_to(other);
  device::wgmma_wait<0>();
#pragma unroll
  for (auto& part : sums) device::wgmma_touch(part);
  free(previous);
}

// The tiles of a block, or of a cluster: first, first + stride, ... below `count`; first is less than stride.
struct Walk {
  int first, stride, count;
};

// Warpgroup 0 computes the first, third, fifth ... tile of the walk, warpgroup 1 the others; `store(sums, tile)` is the epilogue.
// Every tile but the walk's first waits for a turn, and every tile but its last gives one.
template <class R, class Free, class Store>
__device__ __forceinline__ void take_turns(R& ring, int warpgroup, int steps, const Walk& walk, const Free& free,
                                           const Store& store) {
  Cursor<R> at;
  if (warpgroup == 1) skip(at, steps);
  float sums[R::tile_m / 64][R::tile_n / 2];
  for (int tile = walk.first + warpgroup * walk.stride; tile < walk.count; tile += 2 * walk.stride) {
    if (tile >= walk.stride) wait_for_turn(warpgroup);
    multiply_own_tile(ring, at, steps, tile + walk.stride < walk.count, 1 - warpgroup, sums, free);
    skip(at, steps);
    store(sums, tile);
  }
}

}  // namespace aisp::ch10::warpgroup_turns
