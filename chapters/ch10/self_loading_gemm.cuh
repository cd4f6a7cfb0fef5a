// SPDX-License-Identifier: Apache-2.0
// The GEMM on TMA and wgmma before its warps get different jobs: two warpgroups multiply, and one of their threads also asks for
// the loads. C[m][n] = A[m][k] B[k][n], row-major, bf16.
#pragma once
#include "wgmma_gemm.cuh"

namespace aisp::ch10::self_loading_gemm {

using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads;
constexpr int threads = 2 * warpgroup_threads;

// A block computes one tile, each warpgroup 64 rows of it. `in_flight` groups of products stay queued when a step ends; the stage
// that the one before them has read is filled again at once, for `R::stages` steps later.
template <class R, int in_flight>
static __global__ __launch_bounds__(threads) void tile_kernel(const __grid_constant__ CUtensorMap a,
                                                              const __grid_constant__ CUtensorMap b, bf16* c, int n, int k) {
  static_assert(R::tile_m == 128 && in_flight < R::stages);
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int top = static_cast<int>(blockIdx.y) * R::tile_m, left = static_cast<int>(blockIdx.x) * R::tile_n;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0), steps = k / tile_k;
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();

  wgmma_gemm::Cursor<R> filling, reading;
  int loaded = 0;
  const auto load_next = [&] {
    wgmma_gemm::load_stage(ring, filling, &a, &b, top, left, loaded * tile_k);
    ++loaded;
  };
  if (threadIdx.x == 0)
    while (loaded < R::stages && loaded < steps) load_next();

  float sums[R::tile_n / 2];
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[reading.stage], reading.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    wgmma_gemm::multiply_stage(ring, reading.stage, warpgroup * 64, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<in_flight>();
    if (step >= in_flight) {
      const int done = (reading.stage + R::stages - in_flight) % R::stages;
      if (threadIdx.x % warpgroup_threads == 0) device::barrier_arrive(&ring.empty[done]);
      if (threadIdx.x == 0 && loaded < steps) load_next();
    }
    reading.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  wgmma_gemm::store_sectors(sums, c, n, top + warpgroup * 64, left);
}

}  // namespace aisp::ch10::self_loading_gemm
