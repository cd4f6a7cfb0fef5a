// SPDX-License-Identifier: Apache-2.0
// A ring (wgmma_gemm.cuh) that two blocks of a cluster fill together: they compute tiles one below the other, need the same part
// of B, and each loads half of it into both. A stage is free when the readers of both blocks have left it.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/cluster.cuh>

namespace aisp::ch10::block_pair {

constexpr unsigned blocks = 2;
constexpr std::uint16_t both = 0b11;  // as a mask of the cluster's blocks

// Before the loads of the next stage, by the thread that starts them.
template <class R>
__device__ __forceinline__ void expect_stage(R& ring, const wgmma_gemm::Cursor<R>& at) {
  device::barrier_wait_cluster(&ring.empty[at.stage], at.phase ^ 1);
  device::barrier_arrive_expect(&ring.full[at.stage], R::stage_bytes);
}

template <class R>
__device__ __forceinline__ void release_stage(R& ring, int stage) {
  for (unsigned rank = 0; rank < blocks; ++rank) device::barrier_arrive_remote(&ring.empty[stage], rank);
}

// By one consumer warpgroup: `queue(stage, step)` issues the products of a stage. One group of them is kept in flight; a stage is
// given back when the products of the next have been queued.
template <class R, int count, class Queue>
__device__ __forceinline__ void multiply(R& ring, wgmma_gemm::Cursor<R>& at, int steps, float (&sums)[count], Queue queue) {
  const bool leader = threadIdx.x % wgmma_gemm::warpgroup_threads == 0;
  int previous = -1;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    queue(at.stage, step);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (leader && previous >= 0) release_stage(ring, previous);
    previous = at.stage;
    at.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  if (leader) release_stage(ring, previous);
}

// One pair per two SMs.
inline unsigned pairs_on_gpu() {
  int device = 0, found = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(found) / blocks;
}

}  // namespace aisp::ch10::block_pair
