// SPDX-License-Identifier: Apache-2.0
// A kernel like kernel.cuh's, whose rows of A lie anywhere in a table: row m of A is table[rows[m]], as the tokens of experts
// are. TMA copies boxes of neighbouring rows, and Hopper's has none for an index, so that all threads of the producer copy A by
// cp.async, 16 bytes each, into the places that TMA's swizzle would give them; B comes by TMA as ever.
#pragma once
#include <aisp/device/async_copy.cuh>

#include "kernel.cuh"

namespace aisp::gemm {

// The main loop, which also says where A's rows are. Rows that are not the tile's own are zero.
struct GatheredInTensorCores : InTensorCores {
  const bf16* table = nullptr;
  const int* rows = nullptr;
  int pitch = 0;  // of the table, in elements

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    const int steps = C::steps(tile);
    int previous = -1;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      device::fence_proxy_async_shared();  // cp.async writes as threads do, and wgmma reads as TMA does
#pragma unroll
      for (auto& part : sums) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part) multiply_stage(ring, at.stage, first_row + part * 64, 0, sums[part], step > 0);
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (previous >= 0) ring.give_back(previous);
      previous = at.stage;
      at.next();
    }
    queued();
    device::wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    ring.give_back(previous);
  }
};

namespace detail {

// By all threads of the producer: the stages of a tile. A thread has the same 16 bytes of every 16th row.
template <class C, class Extent>
__device__ __forceinline__ void gather_tile(Ring<C>& ring, Cursor<C>& at, const Maps& maps, const Extent& extent,
                                            const GatheredInTensorCores& from, const Tile& tile) {
  constexpr int copies = C::tile_m / 16, chunk_elements = 8;
  const int thread = static_cast<int>(threadIdx.x) % warpgroup_threads, row = thread / 8, chunk = thread % 8;
  int sources[copies];
#pragma unroll
  for (int i = 0; i < copies; ++i) sources[i] = from.rows[min(tile.m + row + i * 16, tile.m_end - 1)];
  const int place = row * C::tile_k + (chunk ^ row % 8) * chunk_elements;
  for (int k = tile.k; k < tile.k_end; k += C::tile_k) {
    device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
    std::uint64_t* const full = &ring.full[at.stage];
    if (thread == 0) {
      device::barrier_arrive_expect(full, C::tile_n * 128);
      load_others(ring, at.stage, maps, extent, tile, k, 0);
    }
    const bool exists = k + chunk * chunk_elements < tile.k_end;
    const bf16* const column = from.table + (exists ? k + chunk * chunk_elements : 0);
#pragma unroll
    for (int i = 0; i < copies; ++i)
      device::copy_async_16_or_zero(ring.a[at.stage] + place + i * 16 * C::tile_k,
                                    column + static_cast<std::size_t>(static_cast<unsigned>(sources[i])) * from.pitch, exists);
    device::arrive_when_copied(full);
    at.next();
  }
}

}  // namespace detail

template <class C, class Schedule, class Epilogue, class Store>
__global__ __launch_bounds__(C::threads, 1) void gathered_gemm_kernel(const __grid_constant__ Maps maps, const Schedule schedule,
                                                                      const GatheredInTensorCores mainloop,
                                                                      const Epilogue epilogue, const Store store) {
  // The producer's threads hold where their rows lie.
  constexpr int producer_registers = 56, consumer_registers = 224;
  static_assert(C::consumers == 2, "registers are dealt out for two consumers");
  static_assert(C::cluster == 1 && C::A::major == Major::k && sizeof(typename C::A::Element) == 2,
                "bf16 rows, a block for itself");
  static_assert(Store::predicated && !Store::any_width, "a tile's last rows may be another group's: RowsStore leaves them alone");
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring<C>& ring = *reinterpret_cast<Ring<C>*>(memory);
  if (threadIdx.x == 0) {
    device::prefetch_tensor_map(&maps.b);
    for (int stage = 0; stage < C::stages; ++stage) {
      device::barrier_init(&ring.full[stage], 1 + warpgroup_threads);
      device::barrier_init(&ring.empty[stage], C::pingpong ? 1 : C::consumers);
    }
    device::fence_barrier_init();
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  const detail::Walk walk{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)};
  if (warpgroup == C::consumers) {
    device::give_up_registers<producer_registers>();
    Cursor<C> at;
    Tile tile;
    for (int index = walk.first; schedule.template at<C>(index, tile); index += walk.stride)
      detail::gather_tile<C>(ring, at, maps, schedule.extent, mainloop, tile);
    device::wait_copies<0>();  // none may land in the memory of a block that has ended
  } else {
    device::take_registers<consumer_registers>();
    unsigned char* const staging = memory + sizeof(Ring<C>) + warp * staging_bytes<C, Epilogue, Store>;
    const detail::Consumer<C, Schedule, Epilogue, Store> consumer{ring,  maps,    schedule,  mainloop,      epilogue,
                                                                  store, staging, warpgroup, warp % 4 * 16, nullptr};
    if constexpr (C::pingpong) consumer.take_turns(walk, 0);
    else consumer.share_tiles(walk, 0);
    Store::finish();
  }
}

}  // namespace aisp::gemm
