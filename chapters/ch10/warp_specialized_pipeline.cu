// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096, tiles of 128 x 256 in a ring of four stages. Where one thread of the multiplying warps
// also asks for the loads, its warp waits until the other warpgroup has left a stage before it may queue its own next products,
// and with it its whole warpgroup waits. A third warpgroup does nothing but load: it may wait as long as it likes. Its threads
// would hold a third of the registers; setmaxnreg hands them to those that multiply.
#include "gemm_workload.hpp"
#include "self_loading_gemm.cuh"

#include <aisp/device/warpgroup.cuh>

namespace aisp::ch10 {
namespace {

using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<128, 256, 4>;
constexpr int threads = 3 * warpgroup_threads;

template <int in_flight>
__device__ __forceinline__ void consume(Ring& ring, int first_row, int steps, float (&sums)[Ring::tile_n / 2]) {
  const bool leader = threadIdx.x % warpgroup_threads == 0;
  wgmma_gemm::Cursor<Ring> at;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    wgmma_gemm::multiply_stage(ring, at.stage, first_row, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<in_flight>();
    if (leader && step >= in_flight) device::barrier_arrive(&ring.empty[(at.stage + Ring::stages - in_flight) % Ring::stages]);
    at.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
}

template <bool reallocate, int in_flight>
__global__ __launch_bounds__(threads, 1) void producer_kernel(const __grid_constant__ CUtensorMap a,
                                                              const __grid_constant__ CUtensorMap b, bf16* c, int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  const int top = static_cast<int>(blockIdx.y) * Ring::tile_m, left = static_cast<int>(blockIdx.x) * Ring::tile_n;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  if (warpgroup == 2) {
    if constexpr (reallocate) device::give_up_registers<40>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    wgmma_gemm::Cursor<Ring> at;
    for (int depth = 0; depth < k; depth += tile_k) wgmma_gemm::load_stage(ring, at, &a, &b, top, left, depth);
    return;
  }
  if constexpr (reallocate) device::take_registers<232>();
  float sums[Ring::tile_n / 2];
  consume<in_flight>(ring, warpgroup * 64, k / tile_k, sums);
  wgmma_gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

class WarpSpecializedPipeline final : public GemmWorkload {
 public:
  explicit WarpSpecializedPipeline(Setup& setup)
      : GemmWorkload{setup, 4096, 4096, 4096},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)} {
    allow(self_loading_gemm::tile_kernel<Ring, 1>);
    allow(producer_kernel<false, 1>);
    allow(producer_kernel<true, 1>);
    allow(producer_kernel<true, 2>);
  }

  void one_thread_loads(Launch& launch) { multiply(launch, self_loading_gemm::tile_kernel<Ring, 1>, self_loading_gemm::threads); }
  void producer_warp(Launch& launch) { multiply(launch, producer_kernel<false, 1>, threads); }
  void producer_setmaxnreg(Launch& launch) {
    multiply(launch, producer_kernel<true, 1>, threads);
  }

 private:
  using Kernel = void(CUtensorMap, CUtensorMap, bf16*, int, int);
  static void allow(Kernel* kernel) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
  }
  void multiply(Launch& launch, Kernel* kernel, int block_threads) {
    kernel<<<tiles(Ring::tile_m, Ring::tile_n), block_threads, sizeof(Ring), launch.stream>>>(
        a_map_, b_map_, c_, static_cast<int>(n_), static_cast<int>(k_));
    check(cudaGetLastError());
  }

  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair warp_specialized_pipeline{
    .teaches = "a producer warp may wait for loads as the math never does, and setmaxnreg hands its registers to the consumers",
    .make = make<WarpSpecializedPipeline>,
    .baseline = {.name = "one_thread_loads", .run = call<&WarpSpecializedPipeline::one_thread_loads>},
    .optimized = variants({{.name = "producer_warp", .run = call<&WarpSpecializedPipeline::producer_warp>},
                           {.name = "producer_setmaxnreg", .run = call<&WarpSpecializedPipeline::producer_setmaxnreg>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
