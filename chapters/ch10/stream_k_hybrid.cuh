// SPDX-License-Identifier: Apache-2.0
// The kernel of stream_k_hybrid: only the tiles that would be left for another wave are divided along K. All SMs do their parts
// of them first, and whole tiles then; meanwhile three warps that have nothing else to do add up the parts. Tiles come in pairs,
// one above the other, for clusters of two blocks that share B.
#pragma once
#include "multicast_gemm.cuh"
#include "stream_k_gemm.cuh"

namespace aisp::ch10::stream_k_hybrid {

using stream_k_gemm::consumers, stream_k_gemm::threads, stream_k_gemm::count, stream_k_gemm::partial_quads;
using stream_k_gemm::Ring, stream_k_gemm::Segment, stream_k_gemm::Epilogue, stream_k_gemm::Exchange, stream_k_gemm::shared_bytes;

using multicast_gemm::ranks;
using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads;
using Cursor = wgmma_gemm::Cursor<Ring>;
constexpr int pair_m = static_cast<int>(ranks) * Ring::tile_m;
constexpr int adders = 3;  // warps of the producer warpgroup that load nothing

// Cluster i does part i % ways of pair i / ways, when that is one of the `streamed`; then whole pairs.
struct Plan {
  persistent_gemm::TileOrder order;
  int streamed, ways, steps, n;

  __device__ int cluster() const { return static_cast<int>(blockIdx.x / ranks); }
  __device__ bool has_part() const { return cluster() < streamed * ways; }
  __device__ Segment part() const {
    const int number = cluster() % ways, first = number * steps / ways;
    return {cluster() / ways, first, (number + 1) * steps / ways - first};
  }
  __device__ int row_of(int pair, unsigned rank) const {
    return order[pair].row * pair_m + static_cast<int>(rank) * Ring::tile_m;
  }
  __device__ int column_of(int pair) const { return order[pair].column * Ring::tile_n; }
  template <class Visit>
  __device__ __forceinline__ void whole_pairs(Visit visit) const {
    for (int pair = streamed + cluster(); pair < order.count(); pair += static_cast<int>(gridDim.x / ranks))
      visit(Segment{pair, 0, steps});
  }
};

// The sums of one warpgroup of one block.
__device__ __forceinline__ float4* place(const Exchange& exchange, int cluster, unsigned rank, int warpgroup) {
  return exchange.partials +
         ((static_cast<std::size_t>(cluster) * ranks + rank) * consumers + static_cast<unsigned>(warpgroup)) * partial_quads;
}

// The consumers do not wait for their sums to arrive in L2; a warp that has the time does, and says so.
constexpr int left_barrier = 1, left_threads = consumers * warpgroup_threads + 32;

// By the adders of all blocks that have a part of a tile: each adds up units of 16 rows of 32 columns. `arrived` and `added`
// count blocks and warps, and are zero afterwards.
__device__ __forceinline__ void add_parts(const Plan& plan, const Exchange& exchange, unsigned rank, bf16* c) {
  constexpr int units_across = Ring::tile_n / 32, units = Ring::tile_m / 16 * units_across;
  const int lane = static_cast<int>(device::lane_index()), warp = static_cast<int>(threadIdx.x) % warpgroup_threads / 32;
  const Segment part = plan.part();
  const int first = part.tile * plan.ways, top = plan.row_of(part.tile, rank), left = plan.column_of(part.tile);
  unsigned* const arrived = exchange.arrived + (static_cast<unsigned>(part.tile) * ranks + rank) * 2;
  unsigned* const added = arrived + 1;
  if (warp == 1) device::named_barrier_sync(left_barrier, left_threads);
  if (lane == 0) {
    if (warp == 1) device::add_release_gpu(arrived, 1);
    while (device::load_acquire_gpu(arrived) != static_cast<unsigned>(plan.ways)) __nanosleep(100);
  }
  __syncwarp();
  for (int unit = (plan.cluster() - first) * adders + warp - 1; unit < units; unit += plan.ways * adders) {
    const int band = unit / units_across, group = unit % units_across;  // as warp `band` of the consumers held them
    float sums[16] = {};
#pragma unroll 1
    for (int cluster = first; cluster < first + plan.ways; ++cluster) {
      const float4* const from = place(exchange, cluster, rank, band / 4) + band % 4 * 32 + lane;
#pragma unroll
      for (int i = 0; i < 4; ++i) stream_k_gemm::add(sums + 4 * i, __ldcg(from + (group * 4 + i) * warpgroup_threads));
    }
    wgmma_gemm::store_sectors(sums, c, plan.n, static_cast<std::size_t>(top + (band - warp) * 16), left + group * 32);
  }
  __syncwarp();
  if (lane == 0 && atomicAdd(added, 1) == static_cast<unsigned>(plan.ways * adders) - 1) *arrived = *added = 0;
}

static __global__ __launch_bounds__(threads, 1) void hybrid_kernel(const __grid_constant__ CUtensorMap a,
                                                                   const __grid_constant__ CUtensorMap half_b,
                                                                   const __grid_constant__ CUtensorMap c_boxes, bf16* c,
                                                                   Plan plan, Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers * ranks);
  device::cluster_sync();

  Cursor at;
  const unsigned rank = device::cluster_rank();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<56>();
    if (warp % 4 > 0) {
      if (plan.has_part()) add_parts(plan, exchange, rank, c);
    } else if (threadIdx.x % 32 == 0) {
      const auto load = [&](const Segment& segment) {
        for (int step = segment.first; step < segment.first + segment.steps; ++step)
          multicast_gemm::load_shared_stage(ring, at, &a, &half_b, plan.row_of(segment.tile, rank), plan.column_of(segment.tile),
                                            step * tile_k, rank);
      };
      if (plan.has_part()) load(plan.part());
      plan.whole_pairs(load);
    }
  } else {
    device::take_registers<224>();
    // They have only read the stage, so there is nothing to release.
    const auto give_back = [&ring](int stage) {
      const unsigned t = threadIdx.x % warpgroup_threads;
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    float sums[count];
    if (plan.has_part()) {
      wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, plan.part().steps, sums, give_back);
      stream_k_gemm::leave_sums(place(exchange, plan.cluster(), rank, warpgroup) + threadIdx.x % warpgroup_threads, sums);
      device::named_barrier_arrive(left_barrier, left_threads);
    }
    unsigned char* const staging = memory + sizeof(Ring) + warp * Epilogue::staging_bytes;
    plan.whole_pairs([&](const Segment& segment) {
      wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, segment.steps, sums, give_back);
      Epilogue::put(sums, staging, c_boxes,
                    {c, plan.n, plan.row_of(segment.tile, rank) + warp * 16, plan.column_of(segment.tile)});
    });
    device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

}  // namespace aisp::ch10::stream_k_hybrid
