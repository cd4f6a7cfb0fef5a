// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 16384 x 8192 with K = 2048: 4,096 tiles of 128 x 256. With one block a tile, every tile begins with an empty
// ring and ends with a store under which no tensor core works (0.89 ms), and the 132 tiles of a wave lie in four rows. One block
// per SM walks over its tiles instead: its producer loads the next one while the consumers store the last (0.83 ms), and takes
// them in bands of sixteen rows, so that a wave needs less of B (0.825 ms; cuBLAS 0.863 ms). In the ping-pong one consumer
// multiplies while the other stores (0.778 ms, as CUTLASS's with the same tile): each has tiles of its own, 128 x 128. Clusters
// of two blocks share their part of B, so that these load no more than tiles of 128 x 256 do.
#include "gemm_workload.hpp"
#include "persistent_gemm.cuh"
#include "pingpong_gemm.cuh"
#include "tcgen05_gemm.cuh"

namespace aisp::ch10 {
namespace {

using namespace persistent_gemm;
using Ring = wgmma_gemm::Ring<tile_m, 256, 4>;
using PingpongRing = wgmma_gemm::Ring<tile_m, 128, 6>;
using Store = TmaStore<2>;

class PersistentMatmul final : public GemmWorkload {
 public:
  explicit PersistentMatmul(Setup& setup)
      : GemmWorkload{setup},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)},
        half_b_map_{wgmma_gemm::b_map(b_, k_, n_, PingpongRing::tile_n / 2)},
        c_map_{c_map(c_, m_, n_)} {}

  void block_per_tile(Launch& launch) {
    if (blackwell_.usable()) blackwell_.run(launch, 1, ~0u);
    else multiply(launch, 1, ~0u);
  }
  void persistent(Launch& launch) { multiply(launch, 1, multiprocessors()); }
  void persistent_grouped(Launch& launch) { multiply(launch, 16, multiprocessors()); }
  void persistent_pingpong(Launch& launch) {
    pingpong_gemm::launch_pingpong<PingpongRing, Store>(launch, {a_map_, half_b_map_, c_map_, c_, m_, n_, k_, 16});
  }
  // Not run yet: a grid with a block for every tile, of which those that run take over the others'. Both this and the baseline
  // are on tcgen05 there, since wgmma is not.
  void cluster_launch_control(Launch& launch) { asking_.run(launch, 16, 0); }

 private:
  void multiply(Launch& launch, int band, unsigned most_blocks) {
    const TileOrder order{m_, n_, Ring::tile_m, Ring::tile_n, band};
    const unsigned blocks = std::min(static_cast<unsigned>(order.count()), most_blocks);
    launch(persistent_kernel<Ring, Store>, {blocks, threads, shared_bytes<Ring, Store>}, a_map_, b_map_, c_map_, c_, n_, k_,
           order);
  }

  CUtensorMap a_map_, b_map_, half_b_map_, c_map_;
  tcgen05_gemm::Gemm<tcgen05_gemm::Plan<device::TensorKind::bf16>> blackwell_{a_, b_, c_, m_, n_, k_};
  tcgen05_gemm::Gemm<tcgen05_gemm::AskingPlan> asking_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair persistent_matmul{
    .teaches =
        "one block per SM walks all tiles: the next one's loads hide under the last one's stores, in an order that suits L2",
    .lesson = "persistent_grouped",
    .make = make<PersistentMatmul>,
    .baseline = {.name = "block_per_tile", .run = call<&PersistentMatmul::block_per_tile>},
    .optimized =
        variants({{.name = "persistent", .run = call<&PersistentMatmul::persistent>, .needs = {.max_sm = 90}},
                  {.name = "persistent_grouped", .run = call<&PersistentMatmul::persistent_grouped>, .needs = {.max_sm = 90}},
                  {.name = "persistent_pingpong", .run = call<&PersistentMatmul::persistent_pingpong>, .needs = {.max_sm = 90}},
                  {.name = "cluster_launch_control",
                   .run = call<&PersistentMatmul::cluster_launch_control>,
                   .needs = tcgen05_gemm::needs}}),
    .libraries = persistent_libraries,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = tcgen05_gemm::last_sm},
    .sizes = sizes({{.name = "m", .full = 16384, .multiple = 256},
                    {.name = "n", .full = 8192, .multiple = 256},
                    {.name = "k", .full = 2048, .multiple = 256}}),
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
