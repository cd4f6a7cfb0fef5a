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
constexpr int layers = 4, rows = 64, split = 4;
constexpr int tile_n = 128, deep_stages = 8, cluster_stages = 4;  // of 24 KB; a cluster finds room where two blocks fit an SM
constexpr int consumers = wgmma_gemm::warpgroup_threads, threads = consumers + 32;
constexpr int count = tile_n / 2, quads = count / 4;             // of a thread's sums
constexpr int part = count / split, part_quads = quads / split;  // what one block of a cluster adds up
constexpr unsigned tile_bytes = rows * tile_n * sizeof(float);

// What the blocks of a tile tell one another, beside sums.
struct Notes {
  std::uint64_t all_received;
  bool last;
};
template <int stages>
struct Shared {
  wgmma_gemm::Ring<rows, tile_n, stages> ring;
  Notes notes;
};

__device__ __forceinline__ float4 quad(const float (&sums)[count], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }

// What becomes of a block's sums, told to the consumers with the ring's memory, which is theirs now. Partial tiles lie as the
// threads hold them, one quad of each thread after the other.

struct Store {
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(float4*, Notes&, float (&sums)[count]) const {
    wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * tile_n);
  }
};

struct StorePartial {
  float4* partials;  // [split][tiles]
  static constexpr bool in_cluster = false;
  __device__ void operator()(float4*, Notes&, float (&sums)[count]) const {
    float4* const to = partials + (blockIdx.y * gridDim.x + blockIdx.x) * quads * consumers + threadIdx.x;
#pragma unroll
    for (int i = 0; i < quads; ++i) to[i * consumers] = quad(sums, i);
  }
};

// Each block adds its tile to one in L2 that begins as zeros; the last of the four narrows it and leaves zeros.
struct AddInL2 {
  float4* totals;  // [tiles]
  unsigned* arrived;
  bf16* y;
  int n;
  static constexpr bool in_cluster = false;
  __device__ void operator()(float4* staged, Notes& notes, float (&sums)[count]) const {
    float4* const total = totals + blockIdx.x * quads * consumers;
    device::named_barrier_sync(1, consumers);  // no warp's products read the ring any more
#pragma unroll
    for (int i = 0; i < quads; ++i) staged[i * consumers + threadIdx.x] = quad(sums, i);
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1, consumers);
    if (threadIdx.x == 0) {
      device::bulk_add_f32(reinterpret_cast<float*>(total), staged, tile_bytes);
      device::commit_stores();
      device::wait_stores<0>();
      device::fence_proxy_async();
      device::fence_gpu();
      notes.last = atomicAdd(arrived + blockIdx.x, 1) == split - 1;
      device::fence_gpu();
    }
    device::named_barrier_sync(1, consumers);
    if (!notes.last) return;
#pragma unroll
    for (int i = 0; i < quads; ++i) {
      const float4 v = __ldcg(total + i * consumers + threadIdx.x);
      sums[4 * i] = v.x, sums[4 * i + 1] = v.y, sums[4 * i + 2] = v.z, sums[4 * i + 3] = v.w;
      total[i * consumers + threadIdx.x] = make_float4(0, 0, 0, 0);
    }
    if (threadIdx.x == 0) arrived[blockIdx.x] = 0;
    wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * tile_n);
  }
};

// Block r of the cluster adds up and writes the r-th 32 columns of the tile. When no block reads its ring any more, the other
// three send theirs into it; each store reports its bytes to a barrier of the receiver.
struct SumInCluster {
  bf16* y;
  int n;
  static constexpr bool in_cluster = true;
  __device__ void operator()(float4* received, Notes& notes, float (&sums)[count]) const {
    const unsigned rank = device::cluster_rank();
    device::cluster_sync();
    float mine[part];
#pragma unroll
    for (unsigned to = 0; to < split; ++to) {
      if (to == rank) {
#pragma unroll
        for (int i = 0; i < part; ++i) mine[i] = sums[to * part + i];
        continue;
      }
      const std::uint32_t barrier = device::remote_address(&notes.all_received, to);
      const std::uint32_t place = device::remote_address(received + ((rank ^ to) - 1) * part_quads * consumers + threadIdx.x, to);
#pragma unroll
      for (int i = 0; i < part_quads; ++i)
        device::store_async_f32x4(place + i * consumers * sizeof(float4), quad(sums, to * part_quads + i), barrier);
    }
    device::barrier_wait_cluster(&notes.all_received, 0);
#pragma unroll
    for (int from = 0; from < split - 1; ++from)
#pragma unroll
      for (int i = 0; i < part_quads; ++i) add(mine + 4 * i, received[(from * part_quads + i) * consumers + threadIdx.x]);
    wgmma_gemm::store_sums(mine, y, n, 0, blockIdx.x * tile_n + rank * (tile_n / split));
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
template <int stages, class Finish>
static __global__ __launch_bounds__(threads, 1) void tile_kernel(const __grid_constant__ CUtensorMap x,
                                                                 const __grid_constant__ CUtensorMap w, int depth,
                                                                 Finish finish) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<stages>& shared = *reinterpret_cast<Shared<stages>*>(memory);
  if (threadIdx.x == 0) {
    device::barrier_init(&shared.notes.all_received, 1);
    shared.ring.init(1);
    if (Finish::in_cluster) device::barrier_arrive_expect(&shared.notes.all_received, (split - 1) * tile_bytes / split);
  }
  __syncthreads();
  device::let_dependents_start();

  if (threadIdx.x >= consumers) {
    const int first_k = static_cast<int>(blockIdx.y) * depth;
    if (threadIdx.x == consumers) load(shared.ring, &x, &w, blockIdx.x * tile_n, first_k, first_k + depth);
    if (Finish::in_cluster) device::cluster_sync();
    return;
  }
  wgmma_gemm::Cursor<wgmma_gemm::Ring<rows, tile_n, stages>> at;
  float sums[count];
  wgmma_gemm::multiply_tile(shared.ring, at, 0, depth / wgmma_gemm::tile_k, sums);
  device::wait_for_previous_kernel();
  finish(reinterpret_cast<float4*>(&shared.ring), shared.notes, sums);
}

// Block (x, y): the y-th quarter of tile x.
static __global__ __launch_bounds__(consumers) void reduce_kernel(const float4* partials, bf16* y, int n) {
  const int tile_quads = quads * consumers;
  const float4* const from = partials + blockIdx.x * tile_quads + blockIdx.y * part_quads * consumers + threadIdx.x;
  float sums[part] = {};
#pragma unroll
  for (int s = 0; s < split; ++s)
#pragma unroll
    for (int i = 0; i < part_quads; ++i) add(sums + 4 * i, from[s * gridDim.x * tile_quads + i * consumers]);
  wgmma_gemm::store_sums(sums, y, n, 0, blockIdx.x * tile_n + blockIdx.y * (tile_n / split));
}

}  // namespace aisp::ch10::split_k_gemm
