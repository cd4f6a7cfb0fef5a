// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 8192 x 8192 x 8192, on wgmma. With cp.async each of 256 threads computes addresses, issues twelve 16-byte
// copies a stage, fences them for the tensor cores' proxy and meets the others at a __syncthreads: instructions and registers
// that do no arithmetic. TMA takes a description of the whole matrix once, and then one thread asks for a swizzled box with one
// instruction; an mbarrier counts its bytes. Tile, stages and the order of the sums are the same, so the results are bitwise the
// same.
#include "gemm_workload.hpp"
#include "wgmma_cp_async_gemm.cuh"
#include "wgmma_gemm.cuh"

namespace aisp::ch10 {
namespace {

using Ring = wgmma_gemm::Ring<wgmma_cp_async::tile_m, wgmma_cp_async::tile_n, wgmma_cp_async::stages>;
constexpr int threads = wgmma_cp_async::threads;

// Thread 0 asks for a stage as soon as both warpgroups are done with it, between its own products.
__global__ __launch_bounds__(threads, 1) void tma_kernel(const __grid_constant__ CUtensorMap a,
                                                         const __grid_constant__ CUtensorMap b, __nv_bfloat16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  const int top = static_cast<int>(blockIdx.y) * Ring::tile_m, left = static_cast<int>(blockIdx.x) * Ring::tile_n;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, steps = n / wgmma_gemm::tile_k;
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  wgmma_gemm::Cursor<Ring> filling, reading;
  int loaded = 0;
  const auto load_next = [&] {
    wgmma_gemm::load_stage(ring, filling, &a, &b, top, left, loaded * wgmma_gemm::tile_k);
    ++loaded;
  };
  if (threadIdx.x == 0)
    while (loaded < Ring::stages - 2 && loaded < steps) load_next();

  float sums[Ring::tile_n / 2];
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x == 0 && loaded < steps) load_next();
    device::barrier_wait(&ring.full[reading.stage], reading.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    wgmma_gemm::multiply_stage(ring, reading.stage, warpgroup * 64, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    const int done = (reading.stage + Ring::stages - 1) % Ring::stages;
    if (threadIdx.x % 128 == 0 && step > 0) device::barrier_arrive(&ring.empty[done]);
    reading.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  wgmma_gemm::store_sums(sums, c, n, top + warpgroup * 64, left);
}

class Tma2dPipeline final : public GemmWorkload {
 public:
  explicit Tma2dPipeline(Setup& setup)
      : GemmWorkload{setup, 8192, 8192, 8192},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n)} {
    check(cudaFuncSetAttribute(wgmma_cp_async::ring_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               wgmma_cp_async::shared_bytes));
    check(cudaFuncSetAttribute(tma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
  }

  void cp_async(Launch& launch) {
    using namespace wgmma_cp_async;
    ring_kernel<<<tiles(tile_m, tile_n), threads, shared_bytes, launch.stream>>>(a_, b_, c_, static_cast<int>(n_));
    check(cudaGetLastError());
  }
  void tma_2d(Launch& launch) {
    tma_kernel<<<tiles(Ring::tile_m, Ring::tile_n), threads, sizeof(Ring), launch.stream>>>(a_map_, b_map_, c_,
                                                                                            static_cast<int>(n_));
    check(cudaGetLastError());
  }

 private:
  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair tma_2d_pipeline{
    .teaches =
        "address arithmetic is work too: TMA copies a swizzled box for one instruction of one thread and signals an mbarrier",
    .make = make<Tma2dPipeline>,
    .baseline = {.name = "cp_async", .run = call<&Tma2dPipeline::cp_async>},
    .optimized = variants({{.name = "tma_2d", .run = call<&Tma2dPipeline::tma_2d>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
