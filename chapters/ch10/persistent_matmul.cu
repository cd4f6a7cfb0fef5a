// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 16384 x 8192 with K = 2048: 4,096 tiles of 128 x 256. With one block a tile, every tile begins with an empty
// ring and ends with a store under which no tensor core works, and the 132 tiles of a wave lie in four rows. One block per SM
// walks over its tiles instead: its producer loads the next one while the consumers store the last, in bands of sixteen rows, so
// that a wave needs less of B. Clusters of two blocks then share their part of B, as cluster_multicast explains, and in the
// ping-pong of warp_spec_pingpong one consumer multiplies while the other stores.
#include <algorithm>

#include "blackwell_gemm.cuh"
#include "gemm_clusters.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using namespace gemm;
using Ring = gemm::Ring<tile_m, 256, 4>;
using PingpongRing = gemm::Ring<tile_m, 128, 6>;
using Store = TmaStore<2>;

// Block i computes the tiles i, i + gridDim.x, ...: with as many blocks as tiles it is the kernel that is not persistent. The
// ring runs on from tile to tile, so that the next tile's loads are under way while the consumers store. Store::put takes a
// warp's 16 rows of sums to C, through staging after the ring; tma_store_epilogue is about it.
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                const __grid_constant__ CUtensorMap b,
                                                                const __grid_constant__ CUtensorMap c_boxes, bf16* c, int n,
                                                                int k, TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(2);
  }
  __syncthreads();

  gemm::Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const auto [row, column] = order[tile];
      for (int first_k = 0; first_k < k; first_k += tile_k)
        gemm::load_stage(ring, at, &a, &b, row * tile_m, column * Ring::tile_n, first_k);
    }
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[Ring::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    gemm::multiply_tile(ring, at, warpgroup * 64, k / Ring::tile_k, sums);
    const auto [row, column] = order[tile];
    Store::put(sums, memory + sizeof(Ring) + warp * Store::staging_bytes, c_boxes,
               {c, n, row * tile_m + warp * 16, column * Ring::tile_n});
  }
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

class PersistentMatmul final : public GemmWorkload {
 public:
  explicit PersistentMatmul(Setup& setup)
      : GemmWorkload{setup},
        a_map_{gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{gemm::b_map(b_, k_, n_, Ring::tile_n)},
        half_b_map_{gemm::b_map(b_, k_, n_, Ring::tile_n / 2)},
        quarter_b_map_{gemm::b_map(b_, k_, n_, PingpongRing::tile_n / 2)},
        c_map_{c_map(c_, m_, n_)} {}

  void block_per_tile(Launch& launch) {
    if (blackwell_.usable()) blackwell_.run(launch, 1, ~0u);
    else multiply(launch, 1, ~0u);
  }
  void persistent(Launch& launch) { multiply(launch, 1, multiprocessors()); }
  void persistent_grouped(Launch& launch) { multiply(launch, 16, multiprocessors()); }
  void persistent_multicast(Launch& launch) {
    launch_multicast<Ring, Store>(launch, {a_map_, half_b_map_, c_map_, c_, m_, n_, k_, 16});
  }
  void persistent_pingpong(Launch& launch) {
    launch_pingpong<PingpongRing, Store>(launch, {a_map_, quarter_b_map_, c_map_, c_, m_, n_, k_, 16});
  }
  // Not run: a grid with a block for every tile, of which those that run take over the others'. Both this and the baseline
  // are on tcgen05 there, since wgmma is not.
  void cluster_launch_control(Launch& launch) { asking_.run(launch, 16, 0); }

 private:
  void multiply(Launch& launch, int band, unsigned most_blocks) {
    const TileOrder order{m_, n_, Ring::tile_m, Ring::tile_n, band};
    const unsigned blocks = std::min(static_cast<unsigned>(order.count()), most_blocks);
    launch(persistent_kernel, {blocks, threads, shared_bytes<Ring, Store>}, a_map_, b_map_, c_map_, c_, n_, k_, order);
  }

  CUtensorMap a_map_, b_map_, half_b_map_, quarter_b_map_, c_map_;
  blackwell_gemm::Gemm<blackwell_gemm::Plan<device::TensorKind::bf16>> blackwell_{a_, b_, c_, m_, n_, k_};
  blackwell_gemm::Gemm<blackwell_gemm::AskingPlan> asking_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair persistent_matmul{
    .teaches =
        "one block per SM walks all tiles: the next one's loads hide under the last one's stores, in an order that suits L2",
    .lesson = "persistent_grouped",
    .make = make<PersistentMatmul>,
    .baseline = {.name = "block_per_tile", .run = call<&PersistentMatmul::block_per_tile>},
    // The same ring and the same instructions for every tile, whichever block computes it and when: not a bit may differ.
    .optimized =
        variants({{.name = "persistent",
                   .run = call<&PersistentMatmul::persistent>,
                   .needs = {.max_sm = 90},
                   .same_bits_as = "block_per_tile"},
                  {.name = "persistent_grouped",
                   .run = call<&PersistentMatmul::persistent_grouped>,
                   .needs = {.max_sm = 90},
                   .same_bits_as = "block_per_tile"},
                  {.name = "persistent_multicast",
                   .run = call<&PersistentMatmul::persistent_multicast>,
                   .needs = {.max_sm = 90},
                   .same_bits_as = "block_per_tile"},
                  {.name = "persistent_pingpong", .run = call<&PersistentMatmul::persistent_pingpong>, .needs = {.max_sm = 90}},
                  {.name = "cluster_launch_control",
                   .run = call<&PersistentMatmul::cluster_launch_control>,
                   .needs = blackwell_gemm::needs,
                   .not_run = true}}),
    .libraries = persistent_libraries,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = blackwell_gemm::last_sm},
    .sizes = sizes({{.name = "m", .full = 16384, .multiple = 256},
                    {.name = "n", .full = 8192, .multiple = 256},
                    {.name = "k", .full = 2048, .multiple = 256}}),
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
