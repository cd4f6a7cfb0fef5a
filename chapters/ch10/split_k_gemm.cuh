// SPDX-License-Identifier: Apache-2.0
// The kernels of split_k_dsmem: a block computes a tile over a part of K, and one of four ways to add up the parts.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/warpgroup.cuh>

#include <cuda_bf16.h>

#include <type_traits>

namespace aisp::ch10::split_k_gemm {

using bf16 = __nv_bfloat16;
constexpr int layers = 4, rows = 64;
constexpr int consumers = wgmma_gemm::warpgroup_threads, threads = consumers + 32;

// Tiles of 64 x tile_n over 1 / split of K, through a ring of `stages`.
template <int tile_n_, int split_, int stages_>
struct Shape {
  static constexpr int tile_n = tile_n_, split = split_, stages = stages_;
  static constexpr int count = tile_n / 2, quads = count / 4;             // of a thread's sums
  static constexpr int part = count / split, part_quads = quads / split;  // what one block of a cluster adds up
  static constexpr unsigned tile_bytes = rows * tile_n * sizeof(float);
  using Ring = wgmma_gemm::Ring<rows, tile_n, stages>;

  // In dynamic shared memory.
  struct Shared {
    Ring ring;
    float4 received[split - 1 + (split == 1)][part_quads][consumers];  // from the other blocks of a cluster
    std::uint64_t all_received;
    bool last;
  };
};

template <int count>
__device__ __forceinline__ float4 quad(const float (&sums)[count], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }

// What becomes of a block's sums, told to the consumers. Partial tiles lie as the threads hold them, one quad of each thread
// after the other.

template <class S>
struct Store {
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared&, float (&sums)[S::count]) const {
    wgmma_gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n);
  }
};

template <class S>
struct StorePartial {
  float4* partials;  // [split][tiles]
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared&, float (&sums)[S::count]) const {
    float4* const to = partials + (blockIdx.y * gridDim.x + blockIdx.x) * S::quads * consumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < S::quads; ++i) to[i * consumers] = quad(sums, i);
  }
};

// Each block adds its tile to one in L2 that begins as zeros; the last of them narrows it and leaves zeros.
template <class S>
struct AddInL2 {
  float4* totals;  // [tiles]
  unsigned* arrived;
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(typename S::Shared& shared, float (&sums)[S::count]) const {
    float4* const total = totals + blockIdx.x * S::quads * consumers;
    float4* const staged = reinterpret_cast<float4*>(&shared.ring);
    device::named_barrier_sync(1, consumers);  // no warp's products read the ring any more
#pragma unroll
    for (int i = 0; i < S::quads; ++i) staged[i * consumers + threadIdx.x] = quad(sums, i);
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1, consumers);
    if (threadIdx.x == 0) {
      device::bulk_add_f32(reinterpret_cast<float*>(total), staged, S::tile_bytes);
      device::commit_stores();
      device::wait_stores<0>();
      device::fence_proxy_async();
      device::fence_gpu();
      shared.last = atomicAdd(arrived + blockIdx.x, 1) == S::split - 1;
      device::fence_gpu();
    }
    device::named_barrier_sync(1, consumers);
    if (!shared.last) return;
#pragma unroll
    for (int i = 0; i < S::quads; ++i) {
      const float4 v = __ldcg(total + i * consumers + threadIdx.x);
      sums[4 * i] = v.x, sums[4 * i + 1] = v.y, sums[4 * i + 2] = v.z, sums[4 * i + 3] = v.w;
      total[i * consumers + threadIdx.x] = make_float4(0, 0, 0, 0);
    }
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
    wgmma_gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n);
  }
};

// Block r of the cluster adds up and writes the r-th part of the tile's columns. The others send it theirs; each store reports
// its bytes to a barrier of the receiver, which cannot end before.
template <class S>
struct SumInCluster {
  bf16* y;
  int n;
  static constexpr bool in_cluster = true;
  __device__ void operator()(typename S::Shared& shared, float (&sums)[S::count]) const {
    const unsigned rank = device::cluster_rank();
    float mine[S::part];
    device::cluster_wait();  // all blocks have started
#pragma unroll
    for (unsigned to = 0; to < S::split; ++to) {
      if (to == rank) {
#pragma unroll
        for (int i = 0; i < S::part; ++i) mine[i] = sums[to * S::part + i];
        continue;
      }
      const std::uint32_t barrier = device::remote_address(&shared.all_received, to);
      const std::uint32_t place = device::remote_address(&shared.received[(rank ^ to) - 1][0][threadIdx.x], to);
#pragma unroll
      for (int i = 0; i < S::part_quads; ++i)
        device::store_async_f32x4(place + i * consumers * sizeof(float4), quad(sums, to * S::part_quads + i), barrier);
    }
    device::barrier_wait_cluster(&shared.all_received, 0);
#pragma unroll
    for (int from = 0; from < S::split - 1; ++from)
#pragma unroll
      for (int i = 0; i < S::part_quads; ++i) add(mine + 4 * i, shared.received[from][i][threadIdx.x]);
    wgmma_gemm::store_sectors(mine, y, n, 0, blockIdx.x * S::tile_n + rank * (S::tile_n / S::split));
  }
};

// By one thread. What fits is asked for at once, the weights first: they do not depend on the layer before, but x does.
template <class Ring>
__device__ __forceinline__ void load(Ring& ring, const CUtensorMap* x, const CUtensorMap* w, int left, int first_k, int end_k) {
  wgmma_gemm::Cursor<Ring> at;
  const int ahead = min(first_k + Ring::stages * wgmma_gemm::tile_k, end_k);
  for (int k = first_k, stage = 0; k < ahead; k += wgmma_gemm::tile_k, ++stage) {
    device::barrier_arrive_expect(&ring.full[stage], Ring::stage_bytes);
    device::tensor_load_3d(ring.b[stage], w, 0, k, left / 64, &ring.full[stage]);
  }
  device::wait_for_previous_kernel();
  for (int k = first_k; k < ahead; k += wgmma_gemm::tile_k, at.next())
    device::tensor_load_2d(ring.a[at.stage], x, k, 0, &ring.full[at.stage]);
  for (int k = ahead; k < end_k; k += wgmma_gemm::tile_k) wgmma_gemm::load_stage(ring, at, x, w, 0, left, k);
}

// Block (x, y): tile x, the y-th `depth` of K. One thread loads, one warpgroup multiplies.
template <class S, template <class> class Finish>
static __global__ __launch_bounds__(threads, 1) void tile_kernel(const __grid_constant__ CUtensorMap x,
                                                                 const __grid_constant__ CUtensorMap w, int depth,
                                                                 Finish<S> finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(memory);
  if (threadIdx.x == 0) {
    device::barrier_init(&shared.all_received, 1);
    shared.ring.init(1);
    if (Finish<S>::in_cluster) device::barrier_arrive_expect(&shared.all_received, (S::split - 1) * S::tile_bytes / S::split);
  }
  __syncthreads();
  if (Finish<S>::in_cluster) device::cluster_arrive();  // sums can be received
  device::let_dependents_start();

  if (threadIdx.x >= consumers) {
    const int first_k = static_cast<int>(blockIdx.y) * depth;
    if (threadIdx.x == consumers) load(shared.ring, &x, &w, blockIdx.x * S::tile_n, first_k, first_k + depth);
    if (Finish<S>::in_cluster) device::cluster_wait();
    return;
  }
  wgmma_gemm::Cursor<typename S::Ring> at;
  float sums[S::count];
  wgmma_gemm::multiply_tile(shared.ring, at, 0, depth / wgmma_gemm::tile_k, sums);
  device::wait_for_previous_kernel();
  finish(shared, sums);
}

// Block (x, y): the y-th part of tile x.
template <class S>
static __global__ __launch_bounds__(consumers) void reduce_kernel(const float4* partials, bf16* y, int n) {
  const int tile_quads = S::quads * consumers;
  const float4* const from = partials + blockIdx.x * tile_quads + blockIdx.y * S::part_quads * consumers + threadIdx.x;
  float sums[S::part] = {};
#pragma unroll
  for (int s = 0; s < S::split; ++s)
#pragma unroll
    for (int i = 0; i < S::part_quads; ++i) add(sums + 4 * i, from[s * gridDim.x * tile_quads + i * consumers]);
  wgmma_gemm::store_sectors(sums, y, n, 0, blockIdx.x * S::tile_n + blockIdx.y * (S::tile_n / S::split));
}

}  // namespace aisp::ch10::split_k_gemm
