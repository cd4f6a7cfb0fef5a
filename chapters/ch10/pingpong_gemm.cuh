// SPDX-License-Identifier: Apache-2.0
// The kernel of multicast_gemm.cuh with another division of labour: its two consumer warpgroups compute tiles of their own and
// take turns at the tensor cores, so that one stores while the other multiplies.
#pragma once
#include "multicast_gemm.cuh"
#include "warpgroup_turns.cuh"

namespace aisp::ch10::pingpong_gemm {

using namespace persistent_gemm;
using multicast_gemm::ranks, multicast_gemm::Product, multicast_gemm::Unchanged, multicast_gemm::Scaled;

// A cluster computes two tiles, one above the other: `order` counts such pairs. Both blocks have as many of them, and the same
// warpgroup of each has the same ones. A stage is read by one warpgroup of each block, which gives it back to both blocks by one
// thread each.
template <class R, class Store, class Finish>
static __global__ __launch_bounds__(threads, 1) void pingpong_kernel(const __grid_constant__ CUtensorMap a,
                                                                     const __grid_constant__ CUtensorMap half_b,
                                                                     const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n,
                                                                     int k, TileOrder order, Finish finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &half_b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(ranks);
  }
  device::cluster_arrive_relaxed();  // initialising has released the barriers
  device::cluster_wait();

  const unsigned rank = device::cluster_rank();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  const warpgroup_turns::Walk walk{static_cast<int>(blockIdx.x / ranks), static_cast<int>(gridDim.x / ranks), order.count()};
  const auto top = [rank](int row) { return (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m; };
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    Cursor<R> at;
    if (threadIdx.x % warpgroup_threads == 0)
      for (int tile = walk.first; tile < walk.count; tile += walk.stride) {
        const auto [row, column] = order[tile];
        for (int depth = 0; depth < k; depth += R::tile_k)
          multicast_gemm::load_shared_stage(ring, at, &a, &half_b, top(row), column * R::tile_n, depth, rank);
      }
  } else {
    device::take_registers<consumer_registers>();
    const unsigned t = threadIdx.x % warpgroup_threads;
    const auto free = [&ring, t](int stage) {
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    unsigned char* const staging = memory + sizeof(R) + warp * Store::staging_bytes;
    warpgroup_turns::take_turns(ring, warpgroup, k / R::tile_k, walk, free, [&](auto& sums, int tile) {
      const auto [row, column] = order[tile];
#pragma unroll
      for (int part = 0; part < R::tile_m / 64; ++part) {
        finish(sums[part]);
        Store::put(sums[part], staging, c_boxes, {c, n, top(row) + part * 64 + warp % 4 * 16, column * R::tile_n});
      }
    });
    if constexpr (Store::asynchronous) device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

template <class R, class Store, class Finish = Unchanged>
void launch_pingpong(Launch& launch, const Product& product, const Finish& finish = {}) {
  multicast_gemm::launch_clusters<R, Store>(launch, product, pingpong_kernel<R, Store, Finish>, finish);
}

}  // namespace aisp::ch10::pingpong_gemm
