// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192, persistent and warp-specialized. Tiles of 128 x 128 read 17 GB from L2, since every block
// loads both operands (1.74 ms). Two blocks of a cluster, one above the other, need the same columns of B: each loads half and
// multicasts it to both (1.67 ms). With tiles of 128 x 256 and TMA stores, 1.59 ms (cuBLAS 1.62). The tensor cores, busy in 84 %
// of the cycles at first and in 94 % at last, draw what the power cap allows (1470 MHz), so that little of that becomes time.
#include "gemm_workload.hpp"
#include "multicast_gemm.cuh"
#include "tcgen05_gemm.cuh"

namespace aisp::ch10 {
namespace {

using namespace multicast_gemm;
constexpr int band = 16;  // rows of tiles

using Narrow = wgmma_gemm::Ring<tile_m, 128, 6>;
using Wide = wgmma_gemm::Ring<tile_m, 256, 4>;

class ClusterMulticast final : public GemmWorkload {
 public:
  explicit ClusterMulticast(Setup& setup)
      : GemmWorkload{setup},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, tile_m)},
        b_64_{wgmma_gemm::b_map(b_, k_, n_, 64)},
        b_128_{wgmma_gemm::b_map(b_, k_, n_, 128)},
        c_map_{c_map(c_, m_, n_)} {}

  void own_loads(Launch& launch) {
    if (alone_.usable()) return alone_.run(launch, 8, multiprocessors());
    const TileOrder order{m_, n_, tile_m, Narrow::tile_n, band};
    const unsigned blocks = std::min(static_cast<unsigned>(order.count()), blocks_);
    launch(persistent_kernel<Narrow, DirectStore>, {blocks, threads, shared_bytes<Narrow, DirectStore>}, a_map_, b_128_, c_map_,
           c_, n_, k_, order);
  }
  void multicast_2x1(Launch& launch) { multicast<Narrow, DirectStore>(launch, b_64_); }
  void multicast_2x1_wide(Launch& launch) { multicast<Wide, TmaStore<2>>(launch, b_128_); }
  // Not run yet: each block of a pair loads half of the columns of B, and the tensor cores of both read all of them, so that they
  // are neither copied nor stored twice. Both this and the baseline are on tcgen05 there, since wgmma is not.
  void tcgen05_2sm(Launch& launch) { pair_.run(launch, 4, multiprocessors()); }

 private:
  template <class R, class Store>
  void multicast(Launch& launch, const CUtensorMap& half_b) {
    launch_multicast<R, Store>(launch, {a_map_, half_b, c_map_, c_, m_, n_, k_, band});
  }

  CUtensorMap a_map_, b_64_, b_128_, c_map_;  // b_64_: boxes of 64 columns of B; b_128_: of 128
  unsigned blocks_ = multiprocessors();
  tcgen05_gemm::Gemm<tcgen05_gemm::Plan<device::TensorKind::bf16>> alone_{a_, b_, c_, m_, n_, k_};
  tcgen05_gemm::Gemm<tcgen05_gemm::PairPlan> pair_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair cluster_multicast{
    .teaches = "neighbouring tiles load the same operand; a cluster fetches it once and multicasts it",
    .lesson = "multicast_2x1",
    .make = make<ClusterMulticast>,
    .baseline = {.name = "own_loads", .run = call<&ClusterMulticast::own_loads>},
    .optimized =
        variants({{.name = "multicast_2x1", .run = call<&ClusterMulticast::multicast_2x1>, .needs = {.max_sm = 90}},
                  {.name = "multicast_2x1_wide", .run = call<&ClusterMulticast::multicast_2x1_wide>, .needs = {.max_sm = 90}},
                  {.name = "tcgen05_2sm", .run = call<&ClusterMulticast::tcgen05_2sm>, .needs = tcgen05_gemm::needs}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = tcgen05_gemm::last_sm, .dsmem = true},
    .sizes = gemm_sizes,
    .sweep = gemm_cases,
};

}  // namespace aisp::ch10
