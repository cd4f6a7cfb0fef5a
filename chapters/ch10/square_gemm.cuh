// SPDX-License-Identifier: Apache-2.0
// A GEMM by tiles of 192 x 192: three consumers of 64 rows, each with 96 sums a thread. For 64 steps of K it loads what a tile of
// 128 x 256 does (48 KB) and multiplies an eighth more.
#pragma once
#include "persistent_gemm.cuh"

namespace aisp::ch10::square_gemm {

using wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads;
using Ring = wgmma_gemm::Ring<192, 192, 4>;
using Cursor = wgmma_gemm::Cursor<Ring>;
using Epilogue = persistent_gemm::TmaStore<1>;
constexpr int consumers = 3, threads = (consumers + 1) * warpgroup_threads, count = Ring::tile_n / 2;
constexpr unsigned shared_bytes = sizeof(Ring) + consumers * 4 * Epilogue::staging_bytes;

// What a tile has beyond the edges of the matrices is loaded as zeros and not stored.
static __global__ __launch_bounds__(threads, 1) void square_kernel(const __grid_constant__ CUtensorMap a,
                                                                   const __grid_constant__ CUtensorMap b,
                                                                   const __grid_constant__ CUtensorMap c_boxes, int steps,
                                                                   int tiles_in_row, int tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  Cursor at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<32>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
      for (int step = 0; step < steps; ++step)
        wgmma_gemm::load_stage(ring, at, &a, &b, tile / tiles_in_row * Ring::tile_m, tile % tiles_in_row * Ring::tile_n,
                               step * tile_k);
    return;
  }
  device::take_registers<160>();
  float sums[count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, steps, sums);
    Epilogue::put(sums, memory + sizeof(Ring) + warp * Epilogue::staging_bytes, c_boxes,
                  {nullptr, 0, tile / tiles_in_row * Ring::tile_m + warp * 16, tile % tiles_in_row * Ring::tile_n});
  }
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

}  // namespace aisp::ch10::square_gemm
