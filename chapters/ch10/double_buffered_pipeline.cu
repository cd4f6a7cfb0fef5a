// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096, tiles of 128 x 128 by TMA and wgmma, one block an SM, so that only the ring's depth
// differs. With room for one stage a block loads 64 of K, waits, multiplies, waits, and loads again. With two stages one is
// loaded while the other is multiplied; with three a group of products stays queued, too, so that the tensor cores do not wait
// for the warps; with four, loads have more time. Three stages also leave room for a second block, which hides the first one's
// loads and stores.
#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using gemm::bf16, gemm::tile_k, gemm::warpgroup_threads;
constexpr int threads = 2 * warpgroup_threads;
template <int stages>
using Ring = gemm::Ring<128, 128, stages>;

// The kernel of tma_2d_pipeline. `in_flight` groups of products stay queued when a step ends; the stage that the one before them
// has read is filled again at once, for `stages` steps later.
template <int stages, int in_flight>
__global__ __launch_bounds__(threads) void tma_kernel(const __grid_constant__ CUtensorMap a,
                                                      const __grid_constant__ CUtensorMap b, bf16* c, int n, int k) {
  static_assert(in_flight < stages);
  using R = Ring<stages>;
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int top = static_cast<int>(blockIdx.y) * R::tile_m, left = static_cast<int>(blockIdx.x) * R::tile_n;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0), steps = k / tile_k;
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  gemm::Cursor<R> filling, reading;
  int loaded = 0;
  const auto load_next = [&] {
    gemm::load_stage(ring, filling, &a, &b, top, left, loaded * tile_k);
    ++loaded;
  };
  if (threadIdx.x == 0)
    while (loaded < stages && loaded < steps) load_next();

  float sums[R::tile_n / 2];
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[reading.stage], reading.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    gemm::multiply_stage(ring, reading.stage, warpgroup * 64, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<in_flight>();
    if (step >= in_flight) {
      const int done = (reading.stage + stages - in_flight) % stages;
      if (threadIdx.x % warpgroup_threads == 0) device::barrier_arrive(&ring.empty[done]);
      if (threadIdx.x == 0 && loaded < steps) load_next();
    }
    reading.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

class DoubleBufferedPipeline final : public GemmWorkload {
 public:
  explicit DoubleBufferedPipeline(Setup& setup)
      : GemmWorkload{setup, 4096, 4096, 4096},
        a_map_{gemm::a_map(a_, m_, k_, Ring<1>::tile_m)},
        b_map_{gemm::b_map(b_, k_, n_, Ring<1>::tile_n)} {}

  void one_stage(Launch& launch) { multiply<1, 0>(launch, one_block); }
  void two_stage(Launch& launch) { multiply<2, 0>(launch, one_block); }
  void three_stage(Launch& launch) { multiply<3, 1>(launch, one_block); }
  void four_stage(Launch& launch) { multiply<4, 1>(launch, one_block); }
  void two_blocks(Launch& launch) { multiply<3, 1>(launch, sizeof(Ring<3>)); }

 private:
  // With so much shared memory each, no two blocks fit on an SM, however few stages they use.
  static constexpr std::size_t one_block = sizeof(Ring<4>);

  template <int stages, int in_flight>
  void multiply(Launch& launch, std::size_t shared_bytes) {
    using R = Ring<stages>;
    launch(tma_kernel<stages, in_flight>, {tiles(R::tile_m, R::tile_n), threads, shared_bytes}, a_map_, b_map_, c_, n_, k_);
  }

  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair double_buffered_pipeline{
    .teaches = "latency hides only if the next tile is already on its way; the ring must be as deep as the loads are long",
    .lesson = "four_stage",
    .make = make<DoubleBufferedPipeline>,
    .baseline = {.name = "one_stage", .run = call<&DoubleBufferedPipeline::one_stage>},
    // The same instructions in the same order: not a bit may differ.
    .optimized =
        variants({{.name = "two_stage", .run = call<&DoubleBufferedPipeline::two_stage>, .same_bits_as = "one_stage"},
                  {.name = "three_stage", .run = call<&DoubleBufferedPipeline::three_stage>, .same_bits_as = "one_stage"},
                  {.name = "four_stage", .run = call<&DoubleBufferedPipeline::four_stage>, .same_bits_as = "one_stage"},
                  {.name = "two_blocks",
                   .run = call<&DoubleBufferedPipeline::two_blocks>,
                   .same_bits_as = "one_stage",
                   .gains_over = "three_stage"}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
