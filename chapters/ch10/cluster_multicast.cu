// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192, persistent and warp-specialized. Tiles of 128 x 128 read 17 GB from L2, since every block
// loads both operands (1.66 ms). Two blocks of a cluster, one above the other, need the same columns of B: each loads half and
// multicasts it to both (1.65 ms). With tiles of 128 x 256 and TMA stores, 1.58 ms (cuBLAS 1.62). The tensor cores, busy in 84 %
// of the cycles at first and in 94 % at last, draw what the power cap allows (1530 MHz), so that little of that becomes time.
#include "gemm_workload.hpp"
#include "persistent_gemm.cuh"

#include <aisp/device/cluster.cuh>

namespace aisp::ch10 {
namespace {

using namespace persistent_gemm;
constexpr unsigned ranks = 2;
constexpr std::uint16_t both = 0b11;
constexpr int band = 8;  // rows of tiles

using Narrow = wgmma_gemm::Ring<tile_m, 128, 6>;
using Wide = wgmma_gemm::Ring<tile_m, 256, 4>;

// Fills the next stage of this block, and half of B's part of the other's: both blocks of the cluster have the same columns. A
// stage is free when the consumers of both blocks have left it, since the copy writes to both.
template <class R>
__device__ __forceinline__ void load_shared_stage(R& ring, Cursor<R>& at, const CUtensorMap* a, const CUtensorMap* half_b, int m,
                                                  int n, int k, unsigned rank) {
  device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
  device::barrier_arrive_expect(&ring.full[at.stage], R::stage_bytes);
  device::tensor_load_2d(ring.a[at.stage], a, k, m, &ring.full[at.stage]);
  device::tensor_load_3d_multicast(ring.b[at.stage] + rank * (R::tile_n / 2 * tile_k), half_b, 0, k,
                                   n / 64 + static_cast<int>(rank) * (R::tile_n / 128), &ring.full[at.stage], both);
  at.next();
}

// multiply_tile with a stage given back to both blocks, by one thread each. They have only read it, so there is nothing to
// release.
template <class R>
__device__ __forceinline__ void multiply_shared_tile(R& ring, Cursor<R>& at, int first_row, int steps,
                                                     float (&sums)[R::tile_n / 2]) {
  const unsigned t = threadIdx.x % warpgroup_threads;
  int previous = -1;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    wgmma_gemm::multiply_stage(ring, at.stage, first_row, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (t < ranks && previous >= 0) device::barrier_arrive_remote_relaxed(&ring.empty[previous], t);
    previous = at.stage;
    at.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[previous], t);
}

// A cluster computes two tiles, one above the other: `order` counts such pairs.
template <class R, class Store>
__global__ __launch_bounds__(threads, 1) void multicast_kernel(const __grid_constant__ CUtensorMap a,
                                                               const __grid_constant__ CUtensorMap half_b,
                                                               const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n, int k,
                                                               TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) ring.init(2 * ranks);
  device::cluster_sync();

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
        for (int depth = 0; depth < k; depth += tile_k)
          load_shared_stage(ring, at, &a, &half_b, top, column * R::tile_n, depth, rank);
      }
  } else {
    device::take_registers<consumer_registers>();
    float sums[R::tile_n / 2];
    for (int tile = first; tile < tiles; tile += stride) {
      multiply_shared_tile(ring, at, warpgroup * 64, k / tile_k, sums);
      const auto [row, column] = order[tile];
      const int top = (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m;
      Store::put(sums, memory + sizeof(R) + warp * Store::staging_bytes, c_boxes, {c, n, top + warp * 16, column * R::tile_n});
    }
    if constexpr (Store::asynchronous) device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

class ClusterMulticast final : public GemmWorkload {
 public:
  explicit ClusterMulticast(Setup& setup)
      : GemmWorkload{setup},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, tile_m)},
        b_64_{wgmma_gemm::b_map(b_, k_, n_, 64)},
        b_128_{wgmma_gemm::b_map(b_, k_, n_, 128)},
        c_map_{c_map(c_, m_, n_)} {
    constexpr auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    allow_shared_memory<Narrow, DirectStore>();
    check(cudaFuncSetAttribute(multicast_kernel<Narrow, DirectStore>, limit, shared_bytes<Narrow, DirectStore>));
    check(cudaFuncSetAttribute(multicast_kernel<Wide, TmaStore<2>>, limit, shared_bytes<Wide, TmaStore<2>>));
  }

  void own_loads(Launch& launch) {
    const TileOrder order{m_, n_, tile_m, Narrow::tile_n, band};
    const unsigned blocks = std::min(static_cast<unsigned>(order.count()), blocks_);
    persistent_kernel<Narrow, DirectStore><<<blocks, threads, shared_bytes<Narrow, DirectStore>, launch.stream>>>(
        a_map_, b_128_, c_map_, c_, static_cast<int>(n_), static_cast<int>(k_), order);
    check(cudaGetLastError());
  }
  void multicast_2x1(Launch& launch) { multicast<Narrow, DirectStore>(launch, b_64_); }
  void multicast_2x1_wide(Launch& launch) { multicast<Wide, TmaStore<2>>(launch, b_128_); }

 private:
  template <class R, class Store>
  void multicast(Launch& launch, const CUtensorMap& half_b) {
    const TileOrder order{m_, n_, tile_m * static_cast<int>(ranks), R::tile_n, band / static_cast<int>(ranks)};
    const unsigned clusters = std::min(static_cast<unsigned>(order.count()), blocks_ / ranks);
    cudaLaunchAttribute cluster{.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {ranks, 1, 1}}};
    const cudaLaunchConfig_t config{.gridDim = clusters * ranks,
                                    .blockDim = threads,
                                    .dynamicSmemBytes = shared_bytes<R, Store>,
                                    .stream = launch.stream,
                                    .attrs = &cluster,
                                    .numAttrs = 1};
    check(cudaLaunchKernelEx(&config, multicast_kernel<R, Store>, a_map_, half_b, c_map_, c_.get(), static_cast<int>(n_),
                             static_cast<int>(k_), order));
  }

  CUtensorMap a_map_, b_64_, b_128_, c_map_;  // b_64_: boxes of 64 columns of B; b_128_: of 128
  unsigned blocks_ = multiprocessors();
};

}  // namespace

extern constinit const Pair cluster_multicast{
    .teaches = "neighbouring tiles load the same operand; a cluster fetches it once and multicasts it",
    .make = make<ClusterMulticast>,
    .baseline = {.name = "own_loads", .run = call<&ClusterMulticast::own_loads>},
    .optimized = variants({{.name = "multicast_2x1", .run = call<&ClusterMulticast::multicast_2x1>},
                           {.name = "multicast_2x1_wide", .run = call<&ClusterMulticast::multicast_2x1_wide>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90, .dsmem = true},
    .sizes = gemm_sizes,
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
