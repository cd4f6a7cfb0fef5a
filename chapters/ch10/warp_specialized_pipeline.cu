// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 4096 x 4096 x 4096, tiles of 128 x 256 in a ring of four stages. Warps that all do the same meet at a
// __syncthreads in every step before a stage is filled again. With mbarriers nobody meets anybody: `one_thread_loads` lets a
// thread of the math wait for both warpgroups, `producer_warp` has a warpgroup for that which does nothing else, and setmaxnreg
// hands its registers to those that multiply. On an H200 none of that is worth anything here: 187, 188, 187 and 187 us (cuBLAS
// 180). Two groups of products are queued, so that the tensor cores have work while the warps meet; issue slots fall from 17 % to
// 11 % busy, and the math was not short of them. Four waves of tiles need 262,000 cycles of the tensor cores, all of these take
// 297,000. What a producer is worth shows where it runs ahead of the end of a tile (persistent_matmul) and where the consumers do
// more than multiply (warp_specialized_attention).
#include "gemm_workload.hpp"
#include "self_loading_gemm.cuh"

#include <aisp/device/warpgroup.cuh>

namespace aisp::ch10 {
namespace {

using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<128, 256, 4>;
constexpr int threads = 3 * warpgroup_threads;

// One tile by one consumer warpgroup, `in_flight` groups of products queued. The last stages are not given back: no tile follows.
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

// Thread 0 fills a stage when everybody has passed the barrier behind its products.
__global__ __launch_bounds__(2 * warpgroup_threads, 1) void barrier_kernel(const __grid_constant__ CUtensorMap a,
                                                                           const __grid_constant__ CUtensorMap b, bf16* c, int n,
                                                                           int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  const int top = static_cast<int>(blockIdx.y) * Ring::tile_m, left = static_cast<int>(blockIdx.x) * Ring::tile_n;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0), steps = k / tile_k;
  if (threadIdx.x == 0) ring.init(1);
  __syncthreads();
  const auto load = [&](int step) {
    std::uint64_t* full = &ring.full[step % Ring::stages];
    device::barrier_arrive_expect(full, Ring::stage_bytes);
    device::tensor_load_2d(ring.a[step % Ring::stages], &a, step * tile_k, top, full);
    device::tensor_load_3d(ring.b[step % Ring::stages], &b, 0, step * tile_k, left / 64, full);
  };
  if (threadIdx.x == 0)
    for (int step = 0; step < Ring::stages - 1 && step < steps; ++step) load(step);

  float sums[Ring::tile_n / 2];
  wgmma_gemm::Cursor<Ring> at;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    wgmma_gemm::multiply_stage(ring, at.stage, warpgroup * 64, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    __syncthreads();  // both warpgroups are done with the step before
    if (threadIdx.x == 0 && step + Ring::stages - 1 < steps) load(step + Ring::stages - 1);
    at.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  wgmma_gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

// With `reallocate` the consumers have registers to spare, and two groups of products stay queued.
template <bool reallocate>
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
  consume<reallocate ? 2 : 1>(ring, warpgroup * 64, k / tile_k, sums);
  wgmma_gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

class WarpSpecializedPipeline final : public GemmWorkload {
 public:
  explicit WarpSpecializedPipeline(Setup& setup)
      : GemmWorkload{setup, 4096, 4096, 4096},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)} {
    allow(barrier_kernel);
    allow(self_loading_gemm::tile_kernel<Ring, 1>);
    allow(producer_kernel<false>);
    allow(producer_kernel<true>);
  }

  void block_barrier(Launch& launch) { multiply(launch, barrier_kernel, 2 * warpgroup_threads); }
  void one_thread_loads(Launch& launch) { multiply(launch, self_loading_gemm::tile_kernel<Ring, 1>, self_loading_gemm::threads); }
  void producer_warp(Launch& launch) { multiply(launch, producer_kernel<false>, threads); }
  void producer_setmaxnreg(Launch& launch) { multiply(launch, producer_kernel<true>, threads); }

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
    .teaches = "warps that load and warps that multiply need no common barrier: who waits for a stage holds nobody up",
    .make = make<WarpSpecializedPipeline>,
    .baseline = {.name = "block_barrier", .run = call<&WarpSpecializedPipeline::block_barrier>},
    .optimized = variants({{.name = "one_thread_loads", .run = call<&WarpSpecializedPipeline::one_thread_loads>},
                           {.name = "producer_warp", .run = call<&WarpSpecializedPipeline::producer_warp>},
                           {.name = "producer_setmaxnreg", .run = call<&WarpSpecializedPipeline::producer_setmaxnreg>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
