// SPDX-License-Identifier: Apache-2.0
// The finished persistent GEMM for clusters of two blocks, which compute tiles one above the other: they need the same columns of
// B, and each fetches half of them for both. Its consumers share a tile or take turns. What products are and what becomes of the
// sums is left to persistent_matmul and fp8_matmul; the mechanisms are explained in cluster_multicast and warp_spec_pingpong.
#pragma once
#include "gemm_epilogue.cuh"

#include <aisp/device/cluster.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>

#include <algorithm>

namespace aisp::ch10::gemm {

// In dynamic shared memory: the ring, and after it the staging of the eight consumer warps.
template <class R, class Store>
constexpr unsigned shared_bytes = sizeof(R) + 8 * Store::staging_bytes;

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
    multiply_tile(ring, at, first_row, steps, sums, free);
  }
};

// Leaves the sums unchanged before they are rounded.
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
        for (int first_k = 0; first_k < k; first_k += R::tile_k)
          load_shared_stage(ring, at, &a, &half_b, top, column * R::tile_n, first_k, rank);
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
    for (int part = 0; part < parts; ++part) multiply_stage(ring, at.stage, part * 64, sums[part], step > 0);
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
  const Walk walk{static_cast<int>(blockIdx.x / ranks), static_cast<int>(gridDim.x / ranks), order.count()};
  const auto top = [rank](int row) { return (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m; };
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    Cursor<R> at;
    if (threadIdx.x % warpgroup_threads == 0)
      for (int tile = walk.first; tile < walk.count; tile += walk.stride) {
        const auto [row, column] = order[tile];
        for (int first_k = 0; first_k < k; first_k += R::tile_k)
          load_shared_stage(ring, at, &a, &half_b, top(row), column * R::tile_n, first_k, rank);
      }
  } else {
    device::take_registers<consumer_registers>();
    const unsigned t = threadIdx.x % warpgroup_threads;
    const auto free = [&ring, t](int stage) {
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    unsigned char* const staging = memory + sizeof(R) + warp * Store::staging_bytes;
    take_turns(ring, warpgroup, k / R::tile_k, walk, free, [&](auto& sums, int tile) {
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

struct Product {
  const CUtensorMap &a, &half_b, &c_boxes;  // half_b: boxes of half a tile's columns
  bf16* c;
  std::size_t m, n, k;
  int band;  // rows of tiles, as TileOrder has them
};

// Any kernel with the parameters of multicast_kernel.
template <class R, class Store, class Kernel, class Finish>
void launch_clusters(Launch& launch, const Product& product, Kernel* kernel, const Finish& finish) {
  static_assert(R::tile_m == tile_m);
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

template <class R, class Store, class Finish = Unchanged>
void launch_pingpong(Launch& launch, const Product& product, const Finish& finish = {}) {
  launch_clusters<R, Store>(launch, product, pingpong_kernel<R, Store, Finish>, finish);
}

}  // namespace aisp::ch10::gemm
