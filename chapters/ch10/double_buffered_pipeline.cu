// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096, tiles of 128 x 128 by TMA and wgmma. With room for one stage a block loads 64 of K, waits,
// multiplies, waits, and loads again; only the other block on the SM hides a part of it (310 us). With two stages one is loaded
// while the other is multiplied (202 us); with three a group of products stays queued, too, so that the tensor cores do not wait
// for the warps (195 us, 91 % of cuBLAS). Four stages leave room for one block per SM, and nothing hides its first loads and its
// stores any more (224 us). Only the depth of the ring differs. 1.59x; 1.8x is not to be had here: cuBLAS is 1.75x.
#include "gemm_workload.hpp"
#include "self_loading_gemm.cuh"

namespace aisp::ch10 {
namespace {

using self_loading_gemm::tile_kernel;
template <int stages>
using Ring = wgmma_gemm::Ring<128, 128, stages>;

class DoubleBufferedPipeline final : public GemmWorkload {
 public:
  explicit DoubleBufferedPipeline(Setup& setup)
      : GemmWorkload{setup, 4096, 4096, 4096},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring<1>::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring<1>::tile_n)} {}

  void one_stage(Launch& launch) { multiply<1, 0>(launch); }
  void two_stage(Launch& launch) { multiply<2, 0>(launch); }
  void three_stage(Launch& launch) { multiply<3, 1>(launch); }
  void four_stage(Launch& launch) { multiply<4, 1>(launch); }

 private:
  template <int stages, int in_flight>
  void multiply(Launch& launch) {
    using R = Ring<stages>;
    launch(tile_kernel<R, in_flight>, {tiles(R::tile_m, R::tile_n), self_loading_gemm::threads, sizeof(R)}, a_map_, b_map_, c_,
           n_, k_);
  }

  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair double_buffered_pipeline{
    .teaches = "latency hides only if the next tile is already on its way; the ring must be as deep as the loads are long",
    .lesson = "three_stage",
    .make = make<DoubleBufferedPipeline>,
    .baseline = {.name = "one_stage", .run = call<&DoubleBufferedPipeline::one_stage>},
    .optimized = variants({{.name = "two_stage", .run = call<&DoubleBufferedPipeline::two_stage>},
                           {.name = "three_stage", .run = call<&DoubleBufferedPipeline::three_stage>},
                           {.name = "four_stage", .run = call<&DoubleBufferedPipeline::four_stage>}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
