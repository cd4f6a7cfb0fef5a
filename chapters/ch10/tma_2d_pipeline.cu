// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192, on wgmma. With cp.async each of 256 threads computes addresses, issues twelve 16-byte
// copies a stage, fences them for the tensor cores' proxy and meets the others at a __syncthreads: instructions and registers
// that do no arithmetic (1.79 ms). TMA takes a description of the whole matrix once, and then one thread asks for a swizzled box
// with one instruction; an mbarrier counts its bytes (1.61 ms, cuBLAS 1.62). At the power cap, 1.52 GHz, that is 1.11x. Tile,
// stages, epilogue and the order of the sums are the same, so the results are bitwise the same.
#include "gemm_workload.hpp"
#include "self_loading_gemm.cuh"
#include "wgmma_cp_async_gemm.cuh"

namespace aisp::ch10 {
namespace {

using Ring = wgmma_gemm::Ring<wgmma_cp_async::tile_m, wgmma_cp_async::tile_n, wgmma_cp_async::stages>;
constexpr auto tma_kernel = self_loading_gemm::tile_kernel<Ring, 1>;

class Tma2dPipeline final : public GemmWorkload {
 public:
  explicit Tma2dPipeline(Setup& setup)
      : GemmWorkload{setup, 8192, 8192, 8192},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)} {}

  void cp_async(Launch& launch) {
    using namespace wgmma_cp_async;
    launch(ring_kernel, {tiles(tile_m, tile_n), threads, shared_bytes}, a_, b_, c_, n_);
  }
  void tma_2d(Launch& launch) {
    launch(tma_kernel, {tiles(Ring::tile_m, Ring::tile_n), self_loading_gemm::threads, sizeof(Ring)}, a_map_, b_map_, c_, n_, k_);
  }

 private:
  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair tma_2d_pipeline{
    .teaches =
        "address arithmetic is work too: TMA copies a swizzled box for one instruction of one thread and signals an mbarrier",
    .lesson = "tma_2d",
    .make = make<Tma2dPipeline>,
    .baseline = {.name = "cp_async", .run = call<&Tma2dPipeline::cp_async>},
    .optimized = variants({{.name = "tma_2d", .run = call<&Tma2dPipeline::tma_2d>}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
