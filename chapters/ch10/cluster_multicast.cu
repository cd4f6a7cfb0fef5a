// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192, persistent and warp-specialized. Tiles of 128 x 128 read 17 GB from L2, since every block
// loads both operands. Two blocks of a cluster, one above the other, need the same columns of B: each loads half and multicasts
// it to both. Tiles of 128 x 256 need less of A, and the multicast then saves less. What it saves is traffic: it becomes time
// where a kernel waits for its loads.
#include <aisp/device/cluster.cuh>
#include <aisp/device_attribute.hpp>

#include <algorithm>

#include "blackwell_gemm.cuh"
#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using namespace gemm;
constexpr unsigned ranks = 2;
constexpr std::uint16_t both = 0b11;
constexpr int band = 16;  // rows of tiles

using Narrow = gemm::Ring<tile_m, 128, 6>;
using Wide = gemm::Ring<tile_m, 256, 4>;

using Store = TmaStore<2>;

template <class R>
constexpr unsigned shared_bytes = sizeof(R) + 8 * Store::staging_bytes;

// The kernel of persistent_matmul.
template <class R>
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                const __grid_constant__ CUtensorMap b,
                                                                const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n,
                                                                int k, TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(2);
  }
  __syncthreads();

  Cursor<R> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const auto [row, column] = order[tile];
      for (int first_k = 0; first_k < k; first_k += R::tile_k)
        gemm::load_stage(ring, at, &a, &b, row * R::tile_m, column * R::tile_n, first_k);
    }
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[R::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    gemm::multiply_tile(ring, at, warpgroup * 64, k / R::tile_k, sums);
    const auto [row, column] = order[tile];
    Store::put(sums, memory + sizeof(R) + warp * Store::staging_bytes, c_boxes,
               {c, n, row * R::tile_m + warp * 16, column * R::tile_n});
  }
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

// A cluster computes two tiles, one above the other: `order` counts such pairs. A block loads its own rows of A, and half of the
// columns of B to the same place in both blocks. So a stage is free when the consumers of both have left it: it is given back to
// both blocks, by one thread each; they have only read it, so there is nothing to release.
template <class R>
__global__ __launch_bounds__(threads, 1) void multicast_kernel(const __grid_constant__ CUtensorMap a,
                                                               const __grid_constant__ CUtensorMap half_b,
                                                               const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n, int k,
                                                               TileOrder order) {
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
        for (int first_k = 0; first_k < k; first_k += R::tile_k) {
          std::uint64_t* const full = &ring.full[at.stage];
          device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
          device::barrier_arrive_expect(full, R::stage_bytes);  // of both halves of B
          device::tensor_load_2d(ring.a[at.stage], &a, first_k, top, full);
          device::tensor_load_3d_multicast(ring.b[at.stage] + rank * (R::tile_n / 2 * R::tile_k), &half_b, 0, first_k,
                                           (column * R::tile_n + static_cast<int>(rank) * (R::tile_n / 2)) / 64, full, both);
          at.next();
        }
      }
  } else {
    device::take_registers<consumer_registers>();
    const unsigned t = threadIdx.x % warpgroup_threads;
    const auto free = [&ring, t](int stage) {
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    float sums[R::tile_n / 2];
    for (int tile = first; tile < tiles; tile += stride) {
      multiply_tile(ring, at, warpgroup * 64, k / R::tile_k, sums, free);
      const auto [row, column] = order[tile];
      const int top = (row * static_cast<int>(ranks) + static_cast<int>(rank)) * tile_m;
      Store::put(sums, memory + sizeof(R) + warp * Store::staging_bytes, c_boxes, {c, n, top + warp * 16, column * R::tile_n});
    }
    device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

class ClusterMulticast final : public GemmWorkload {
 public:
  explicit ClusterMulticast(Setup& setup)
      : GemmWorkload{setup},
        a_map_{gemm::a_map(a_, m_, k_, tile_m)},
        b_64_{gemm::b_map(b_, k_, n_, 64)},
        b_128_{gemm::b_map(b_, k_, n_, 128)},
        b_256_{gemm::b_map(b_, k_, n_, 256)},
        c_map_{c_map(c_, m_, n_)} {}

  void own_loads(Launch& launch) {
    if (alone_.usable()) return alone_.run(launch, 8, multiprocessors());
    alone<Narrow>(launch, b_128_);
  }
  void multicast_2x1(Launch& launch) { multicast<Narrow>(launch, b_64_); }
  void own_loads_wide(Launch& launch) { alone<Wide>(launch, b_256_); }
  void multicast_2x1_wide(Launch& launch) { multicast<Wide>(launch, b_128_); }
  // Not run: each block of a pair loads half of the columns of B, and the tensor cores of both read all of them, so that they
  // are neither copied nor stored twice. Both this and the baseline are on tcgen05 there, since wgmma is not.
  void tcgen05_2sm(Launch& launch) { pair_.run(launch, 4, multiprocessors()); }

 private:
  template <class R>
  void alone(Launch& launch, const CUtensorMap& b) {
    const TileOrder order{m_, n_, tile_m, R::tile_n, band};
    const unsigned blocks = std::min(static_cast<unsigned>(order.count()), blocks_);
    launch(persistent_kernel<R>, {blocks, threads, shared_bytes<R>}, a_map_, b, c_map_, c_, n_, k_, order);
  }
  template <class R>
  void multicast(Launch& launch, const CUtensorMap& half_b) {
    const TileOrder order{m_, n_, tile_m * static_cast<int>(ranks), R::tile_n, band / static_cast<int>(ranks)};
    const unsigned clusters = std::min(static_cast<unsigned>(order.count()), blocks_ / ranks);
    launch(multicast_kernel<R>,
           {.blocks = clusters * ranks, .threads = threads, .shared_bytes = shared_bytes<R>, .cluster = ranks}, a_map_, half_b,
           c_map_, c_, n_, k_, order);
  }

  CUtensorMap a_map_, b_64_, b_128_, b_256_, c_map_;  // of B: boxes of 64, 128 and 256 columns
  unsigned blocks_ = multiprocessors();
  blackwell_gemm::Gemm<blackwell_gemm::Plan<device::TensorKind::bf16>> alone_{a_, b_, c_, m_, n_, k_};
  blackwell_gemm::Gemm<blackwell_gemm::PairPlan> pair_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair cluster_multicast{
    .teaches = "neighbouring tiles load the same operand; a cluster fetches it once and multicasts it",
    .lesson = "multicast_2x1",
    .make = make<ClusterMulticast>,
    .baseline = {.name = "own_loads", .run = call<&ClusterMulticast::own_loads>},
    // With the same tile the instructions and their order are the same, wherever B came from: not a bit may differ.
    .optimized = variants(
        {{.name = "multicast_2x1",
          .run = call<&ClusterMulticast::multicast_2x1>,
          .needs = {.max_sm = 90},
          .same_bits_as = "own_loads"},
         {.name = "own_loads_wide",
          .run = call<&ClusterMulticast::own_loads_wide>,
          .needs = {.max_sm = 90},
          .gains_over = "own_loads"},
         {.name = "multicast_2x1_wide",
          .run = call<&ClusterMulticast::multicast_2x1_wide>,
          .needs = {.max_sm = 90},
          .same_bits_as = "own_loads_wide"},
         {.name = "tcgen05_2sm", .run = call<&ClusterMulticast::tcgen05_2sm>, .needs = blackwell_gemm::needs, .not_run = true}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = blackwell_gemm::last_sm, .dsmem = true},
    .sizes = gemm_sizes,
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
