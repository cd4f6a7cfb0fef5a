// SPDX-License-Identifier: Apache-2.0
// The kernels of stream_k_matmul: how tiles and steps are dealt out, and how blocks that share a tile add up their sums.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/fence.cuh>
#include <aisp/device/warpgroup.cuh>

#include <cuda_bf16.h>

#include <type_traits>

namespace aisp::ch10::stream_k_gemm {

using bf16 = __nv_bfloat16;
using Ring = wgmma_gemm::Ring<128, 256, 4>;
using wgmma_gemm::warpgroup_threads;
constexpr int consumers = 2, threads = (consumers + 1) * warpgroup_threads;
constexpr int count = Ring::tile_n / 2, quads = count / 4;  // of a thread's sums
constexpr int partial_quads = quads * warpgroup_threads;    // of one warpgroup's 64 x 256 sums, as its threads hold them

// Steps of one tile that a block does in one go.
struct Segment {
  int tile, first, steps;
  bool shared;  // with other blocks: these steps are not the whole tile
};

// The first `streamed` tiles are dealt out by steps, the others whole. Shares are numbered against the order in which blocks
// start, so that who waits for share i + 1 started after it: nothing depends on all blocks fitting at the same time.
struct Plan {
  int tiles, streamed, tiles_in_row, steps;

  __device__ int share() const { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }
  __device__ int begin(int share) const {
    return static_cast<int>(static_cast<long long>(share) * streamed * steps / static_cast<int>(gridDim.x));
  }
  // The first of the shares that a tile is dealt out to; `share` is one of them.
  __device__ int first_share(int tile, int share) const {
    while (begin(share) > tile * steps) --share;
    return share;
  }
  __device__ int end_share(int tile, int share) const {
    while (begin(share) < (tile + 1) * steps) ++share;
    return share;
  }

  template <class Visit>
  __device__ __forceinline__ void streamed_segments(Visit visit) const {
    const int end = begin(share() + 1);
    for (int at = begin(share()); at < end;) {
      const int tile = at / steps, first = at - tile * steps, todo = min(end - at, steps - first);
      visit(Segment{tile, first, todo, todo < steps});
      at += todo;
    }
  }
  template <class Visit>
  __device__ __forceinline__ void whole_tiles(Visit visit) const {
    for (int tile = streamed + static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
      visit(Segment{tile, 0, steps, false});
  }
};

// Sums that wait in L2 for other blocks: slot 2 i + 1 is of share i where it begins a tile, 2 i where it goes on with one.
struct Exchange {
  float4* partials;   // [slots][consumers][quads][threads]
  unsigned* arrived;  // of each slot and warpgroup, or of each tile
  unsigned* left;     // of each tile

  __device__ float4* of(int slot, int warpgroup) const {
    return partials + (static_cast<std::size_t>(slot) * consumers + warpgroup) * partial_quads + threadIdx.x % warpgroup_threads;
  }
};

__device__ __forceinline__ bool is_leader() { return threadIdx.x % warpgroup_threads == 0; }
__device__ __forceinline__ void meet(int warpgroup) { device::named_barrier_sync(1 + warpgroup, warpgroup_threads); }

__device__ __forceinline__ void leave_sums(float4* to, const float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i)
    __stcg(to + i * warpgroup_threads, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }
__device__ __forceinline__ void add_sums(const float4* from, float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i) add(sums + 4 * i, __ldcg(from + i * warpgroup_threads));
}
__device__ __forceinline__ void wait_for(const unsigned* flag, unsigned value, int warpgroup) {
  if (is_leader())
    while (device::load_acquire_gpu(flag) != value) {
    }
  meet(warpgroup);
}

__device__ __forceinline__ void store_tile(const Plan& plan, int tile, int warpgroup, const float (&sums)[count], bf16* c) {
  const int row = tile / plan.tiles_in_row, column = tile % plan.tiles_in_row;
  wgmma_gemm::store_sums(sums, c, plan.tiles_in_row * Ring::tile_n, row * Ring::tile_m + warpgroup * 64, column * Ring::tile_n);
}

// Of a tile in several segments the one that has its beginning adds the others, which came first in their blocks' shares.
__device__ __forceinline__ void finish_by_owner(const Plan& plan, const Segment& segment, int warpgroup, float (&sums)[count],
                                                const Exchange& exchange, bf16* c) {
  if (segment.first > 0) {
    leave_sums(exchange.of(2 * plan.share(), warpgroup), sums);
    meet(warpgroup);
    if (is_leader()) device::store_release_gpu(exchange.arrived + plan.share() * consumers + warpgroup, 1);
    return;
  }
  if (segment.shared)
    for (int other = plan.share() + 1, end = plan.end_share(segment.tile, other); other < end; ++other) {
      unsigned* const flag = exchange.arrived + other * consumers + warpgroup;
      wait_for(flag, 1, warpgroup);
      add_sums(exchange.of(2 * other, warpgroup), sums);
      if (is_leader()) *flag = 0;  // for the next run
    }
  store_tile(plan, segment.tile, warpgroup, sums, c);
}

// All blocks of a tile leave their sums; later each of them adds up and writes some columns of the tile.
__device__ __forceinline__ void leave_for_all(const Plan& plan, const Segment& segment, int warpgroup, const float (&sums)[count],
                                              const Exchange& exchange) {
  leave_sums(exchange.of(2 * plan.share() + (segment.first == 0), warpgroup), sums);
  meet(warpgroup);
  if (is_leader()) device::add_release_gpu(exchange.arrived + segment.tile, 1);
}
__device__ __forceinline__ void finish_together(const Plan& plan, const Segment& segment, int warpgroup, const Exchange& exchange,
                                                bf16* c) {
  const int first = plan.first_share(segment.tile, plan.share()), end = plan.end_share(segment.tile, plan.share());
  const unsigned members = static_cast<unsigned>(end - first) * consumers;
  const int n = plan.tiles_in_row * Ring::tile_n, top = segment.tile / plan.tiles_in_row * Ring::tile_m,
            left = segment.tile % plan.tiles_in_row * Ring::tile_n;
  wait_for(exchange.arrived + segment.tile, members, warpgroup);
  for (int unit = (plan.share() - first) * consumers + warpgroup; unit < consumers * quads; unit += static_cast<int>(members)) {
    const int rows_of = unit / quads, quad = unit % quads;
    float sums[4] = {};
#pragma unroll 4
    for (int share = first; share < end; ++share)
      add(sums, __ldcg(exchange.of(2 * share + (share == first), rows_of) + quad * warpgroup_threads));
    wgmma_gemm::store_sums(sums, c, n, top + rows_of * 64, left + quad * 8);
  }
  if (!is_leader() || atomicAdd(exchange.left + segment.tile, 1) != members - 1) return;
  exchange.arrived[segment.tile] = 0;
  exchange.left[segment.tile] = 0;
}

enum class Fixup { by_owner, together };

template <Fixup fixup>
static __global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                       const __grid_constant__ CUtensorMap b, bf16* c, Plan plan,
                                                                       Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  wgmma_gemm::Cursor<Ring> at;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (warpgroup == consumers) {
    device::give_up_registers<40>();
    if (!is_leader()) return;
    const auto load = [&](const Segment& segment) {
      const int top = segment.tile / plan.tiles_in_row * Ring::tile_m, left = segment.tile % plan.tiles_in_row * Ring::tile_n;
      for (int step = segment.first; step < segment.first + segment.steps; ++step)
        wgmma_gemm::load_stage(ring, at, &a, &b, top, left, step * wgmma_gemm::tile_k);
    };
    plan.streamed_segments(load);
    plan.whole_tiles(load);
    return;
  }
  device::take_registers<232>();
  float sums[count];
  plan.streamed_segments([&](const Segment& segment) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, segment.steps, sums);
    if constexpr (fixup == Fixup::by_owner) finish_by_owner(plan, segment, warpgroup, sums, exchange, c);
    else leave_for_all(plan, segment, warpgroup, sums, exchange);
  });
  plan.whole_tiles([&](const Segment& segment) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, segment.steps, sums);
    store_tile(plan, segment.tile, warpgroup, sums, c);
  });
  if constexpr (fixup == Fixup::together)
    plan.streamed_segments([&](const Segment& segment) { finish_together(plan, segment, warpgroup, exchange, c); });
}

inline unsigned multiprocessors() {
  int device = 0, found = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(found);
}

}  // namespace aisp::ch10::stream_k_gemm
