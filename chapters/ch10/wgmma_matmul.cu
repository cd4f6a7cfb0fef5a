// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192. mma.sync takes its operands from registers: every fragment is loaded by ldmatrix, holds a
// register, and one instruction of one warp does 16 x 8 x 16. Hopper's tensor cores take more than that path can carry. wgmma is
// issued by four warps at once, reads both operands straight from shared memory (a descriptor says where) and runs
// asynchronously: one instruction does 64 x 256 x 16. Everything else stays as it was: the same tile, the same four stages, the
// same cp.async by all threads.
#include "gemm_workload.hpp"
#include "mma_sync_gemm.cuh"
#include "tcgen05_gemm.cuh"
#include "wgmma_cp_async_gemm.cuh"

namespace aisp::ch10 {
namespace {

class WgmmaMatmul final : public GemmWorkload {
 public:
  explicit WgmmaMatmul(Setup& setup) : GemmWorkload{setup, 8192, 8192, 8192} {}

  void mma_sync_ring(Launch& launch) {
    using namespace mma_sync;
    launch(ring_kernel<most_stages>, {tiles(tile_m, tile_n), threads, shared_bytes(most_stages)}, a_, b_, c_, n_);
  }
  void wgmma(Launch& launch) {
    using namespace wgmma_cp_async;
    launch(ring_kernel, {tiles(tile_m, tile_n), threads, shared_bytes}, a_, b_, c_, n_);
  }
  // Not run yet: sums in tensor memory instead of registers, products started by one thread, a block for each tile.
  void tcgen05_1sm(Launch& launch) { blackwell_.run(launch, 1, ~0u); }

 private:
  tcgen05_gemm::Gemm<tcgen05_gemm::Plan<device::TensorKind::bf16>> blackwell_{a_, b_, c_, m_, n_, k_};
};

}  // namespace

extern constinit const Pair wgmma_matmul{
    .teaches = "full tensor rate needs wgmma: four warps, operands read straight from shared memory, asynchronous issue",
    .lesson = "wgmma",
    .make = make<WgmmaMatmul>,
    .baseline = {.name = "mma_sync", .run = call<&WgmmaMatmul::mma_sync_ring>},
    .optimized = variants({{.name = "wgmma", .run = call<&WgmmaMatmul::wgmma>, .needs = {.min_sm = 90, .max_sm = 90}},
                           {.name = "tcgen05_1sm", .run = call<&WgmmaMatmul::tcgen05_1sm>, .needs = tcgen05_gemm::needs}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
};

}  // namespace aisp::ch10
