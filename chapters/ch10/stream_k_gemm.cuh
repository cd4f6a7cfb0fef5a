// SPDX-License-Identifier: Apache-2.0
// The kernel of data_parallel and stream_k in stream_k_matmul: how steps are dealt out, and how blocks that share a tile add up
// their sums.
#pragma once
#include "persistent_gemm.cuh"

namespace aisp::ch10::stream_k_gemm {

using persistent_gemm::TmaStore, persistent_gemm::threads;
using wgmma_gemm::bf16, wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<128, 256, 4>;
using Epilogue = TmaStore<2>;
constexpr unsigned shared_bytes = persistent_gemm::shared_bytes<Ring, Epilogue>;
constexpr int consumers = 2;
constexpr int count = Ring::tile_n / 2, quads = count / 4;  // of a thread's sums
constexpr int partial_quads = quads * warpgroup_threads;    // of one warpgroup's 64 x 256 sums, as its threads hold them

// Steps of one tile that a block does in one go.
struct Segment {
  int tile, first, steps;
};

// The steps of all tiles, one tile after the other, are dealt out in equal shares; or the tiles are, whole. Shares are numbered
// against the order in which blocks start, so that who waits for share i + 1 started after it: nothing depends on all blocks
// fitting at the same time.
struct Plan {
  int tiles, tiles_in_row, steps;
  bool whole;

  __device__ int share() const { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }
  __device__ int begin(int share) const {
    return static_cast<int>(static_cast<long long>(share) * tiles * steps / static_cast<int>(gridDim.x));
  }

  template <class Visit>
  __device__ __forceinline__ void segments(Visit visit) const {
    if (whole) {
      for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
        visit(Segment{tile, 0, steps});
      return;
    }
    const int end = begin(share() + 1);
    for (int at = begin(share()); at < end;) {
      const int tile = at / steps, first = at - tile * steps, todo = min(end - at, steps - first);
      visit(Segment{tile, first, todo});
      at += todo;
    }
  }
};

// Sums that wait in L2 for another block: of each share the tile that it goes on with.
struct Exchange {
  float4* partials;   // [shares][consumers][quads][threads]
  unsigned* arrived;  // [shares][consumers]
};

__device__ __forceinline__ bool is_leader() { return threadIdx.x % warpgroup_threads == 0; }

__device__ __forceinline__ void leave_sums(float4* to, const float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i)
    __stcg(to + i * warpgroup_threads, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }

// Of a tile in several segments the one that has its beginning adds the others, which came first in their blocks' shares. True
// when the sums are those of the whole tile now.
__device__ __forceinline__ bool complete(const Plan& plan, const Segment& segment, int warpgroup, float (&sums)[count],
                                         const Exchange& exchange) {
  const auto meet = [&] { device::named_barrier_sync(1 + warpgroup, warpgroup_threads); };
  const auto flag = [&](int share) { return exchange.arrived + share * consumers + warpgroup; };
  const auto place = [&](int share) {
    return exchange.partials + (static_cast<std::size_t>(share) * consumers + warpgroup) * partial_quads +
           threadIdx.x % warpgroup_threads;
  };
  if (segment.first > 0) {
    leave_sums(place(plan.share()), sums);
    meet();
    if (is_leader()) device::store_release_gpu(flag(plan.share()), 1);
    return false;
  }
  int have = segment.steps;
  for (int other = plan.share() + 1; have < plan.steps; ++other) {
    if (is_leader())
      while (device::load_acquire_gpu(flag(other)) != 1) {
      }
    meet();
    const float4* const from = place(other);
#pragma unroll
    for (int i = 0; i < quads; ++i) add(sums + 4 * i, __ldcg(from + i * warpgroup_threads));
    if (is_leader()) *flag(other) = 0;  // for the next run
    have += plan.begin(other + 1) - plan.begin(other);
  }
  return true;
}

static __global__ __launch_bounds__(threads, 1) void stream_kernel(const __grid_constant__ CUtensorMap a,
                                                                   const __grid_constant__ CUtensorMap b,
                                                                   const __grid_constant__ CUtensorMap c_boxes, Plan plan,
                                                                   Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  wgmma_gemm::Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<persistent_gemm::producer_registers>();
    if (!is_leader()) return;
    plan.segments([&](const Segment& segment) {
      const int top = segment.tile / plan.tiles_in_row * Ring::tile_m, left = segment.tile % plan.tiles_in_row * Ring::tile_n;
      for (int step = segment.first; step < segment.first + segment.steps; ++step)
        wgmma_gemm::load_stage(ring, at, &a, &b, top, left, step * wgmma_gemm::tile_k);
    });
    return;
  }
  device::take_registers<persistent_gemm::consumer_registers>();
  float sums[count];
  unsigned char* const staging = memory + sizeof(Ring) + warp * Epilogue::staging_bytes;
  plan.segments([&](const Segment& segment) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, segment.steps, sums);
    if (!complete(plan, segment, warpgroup, sums, exchange)) return;
    const int row = segment.tile / plan.tiles_in_row, column = segment.tile % plan.tiles_in_row;
    Epilogue::put(sums, staging, c_boxes, {nullptr, 0, row * Ring::tile_m + warp * 16, column * Ring::tile_n});
  });
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

}  // namespace aisp::ch10::stream_k_gemm
