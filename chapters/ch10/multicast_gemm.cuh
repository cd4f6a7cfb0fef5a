// SPDX-License-Identifier: Apache-2.0
// The persistent kernel for clusters of two blocks, which compute tiles one above the other: they need the same columns of B, and
// each fetches half of them for both.
#pragma once
#include "persistent_gemm.cuh"

#include <aisp/device/cluster.cuh>
#include <aisp/launch.hpp>

namespace aisp::ch10::multicast_gemm {

using namespace persistent_gemm;
constexpr unsigned ranks = 2;
constexpr std::uint16_t both = 0b11;

// Fills the next stage of this block, and half of B's part of the other's. A stage is free when the consumers of both blocks have
// left it, since the copy writes to both.
template <class R>
__device__ __forceinline__ void load_shared_stage(R& ring, Cursor<R>& at, const CUtensorMap* a, const CUtensorMap* half_b, int m,
                                                  int n, int k, unsigned rank) {
  device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
  device::barrier_arrive_expect(&ring.full[at.stage], R::stage_bytes);
  device::tensor_load_2d(ring.a[at.stage], a, k, m, &ring.full[at.stage]);
  R::Operands::load_b_multicast(ring.b[at.stage] + rank * (R::tile_n / 2 * R::tile_k), half_b,
                                n + static_cast<int>(rank) * (R::tile_n / 2), k, &ring.full[at.stage], both);
  at.next();
}

// How a warpgroup multiplies its 64 rows of a tile: with sums in the tensor cores from the first step to the last.
struct InTensorCores {
  template <class R, class Free>
  static __device__ __forceinline__ void multiply(R& ring, Cursor<R>& at, int first_row, int steps, float (&sums)[R::tile_n / 2],
                                                  const Free& free) {
    wgmma_gemm::multiply_tile(ring, at, first_row, steps, sums, free);
  }
};

// What becomes of the sums before they are rounded.
struct Unchanged {
  template <int count>
  __device__ __forceinline__ void operator()(float (&)[count]) const {}
};
struct Scaled {
  float scale;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count]) const {
#pragma unroll
    for (float& sum : sums) sum *= scale;
  }
};

// A cluster computes two tiles, one above the other: `order` counts such pairs. A stage is given back to both blocks, by one
// thread each; they have only read it, so there is nothing to release.
template <class R, class Store, class Products, class Finish>
static __global__ __launch_bounds__(threads, 1) void multicast_kernel(const __grid_constant__ CUtensorMap a,
                                                                      const __grid_constant__ CUtensorMap half_b,
                                                                      const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n,
                                                                      int k, TileOrder order, Finish finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &half_b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(2 * ranks);
  }
  device::cluster_arrive_relaxed();  // initialising has released the barriers
  device::cluster_wait();

  Cursor<R> at;
  const unsigned rank = device::cluster_rank();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  const int first = static_cast<int>(blockIdx.x / ranks), stride = static_cast<int>(gridDim.x / ranks);
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0)
      for (int tile = first; tile < tiles; tile += stride) {
        const auto [row, column] = order[tile];
        const int top = (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m;
        for (int depth = 0; depth < k; depth += R::tile_k)
          load_shared_stage(ring, at, &a, &half_b, top, column * R::tile_n, depth, rank);
      }
  } else {
    device::take_registers<consumer_registers>();
    const unsigned t = threadIdx.x % warpgroup_threads;
    const auto free = [&ring, t](int stage) {
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    float sums[R::tile_n / 2];
    for (int tile = first; tile < tiles; tile += stride) {
      Products::multiply(ring, at, warpgroup * 64, k / R::tile_k, sums, free);
      finish(sums);
      const auto [row, column] = order[tile];
      const int top = (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m;
      Store::put(sums, memory + sizeof(R) + warp * Store::staging_bytes, c_boxes, {c, n, top + warp * 16, column * R::tile_n});
    }
    if constexpr (Store::asynchronous) device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

struct Product {
  const CUtensorMap &a, &half_b, &c_boxes;  // half_b: boxes of half a tile's columns
  bf16* c;
  std::size_t m, n, k;
  int band;  // rows of tiles, as TileOrder has them
};

// Any kernel with the parameters of multicast_kernel.
template <class R, class Store, class Kernel, class Finish>
void launch_clusters(Launch& launch, const Product& product, Kernel* kernel, const Finish& finish) {
  const TileOrder order{product.m, product.n, tile_m * static_cast<int>(ranks), R::tile_n,
                        std::max(1, product.band / static_cast<int>(ranks))};
  const unsigned clusters = std::min(static_cast<unsigned>(order.count()), multiprocessors() / ranks);
  launch(kernel, {.blocks = clusters * ranks, .threads = threads, .shared_bytes = shared_bytes<R, Store>, .cluster = ranks},
         product.a, product.half_b, product.c_boxes, product.c, product.n, product.k, order, finish);
}

template <class R, class Store, class Products = InTensorCores, class Finish = Unchanged>
void launch_multicast(Launch& launch, const Product& product, const Finish& finish = {}) {
  launch_clusters<R, Store>(launch, product, multicast_kernel<R, Store, Products, Finish>, finish);
}

}  // namespace aisp::ch10::multicast_gemm
