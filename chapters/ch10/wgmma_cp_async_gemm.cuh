// SPDX-License-Identifier: Apache-2.0
// A GEMM on wgmma whose tiles all threads fetch with cp.async, as the kernel on mma.sync does. C = A B, row-major, n x n with n a
// multiple of 256.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/fence.cuh>

#include "wgmma_gemm.cuh"

namespace aisp::ch10::wgmma_cp_async {

using wgmma_gemm::bf16, wgmma_gemm::tile_k;
constexpr int threads = 2 * wgmma_gemm::warpgroup_threads, tile_m = 128, tile_n = 256, stages = 4;
// A: 128 rows of 64 k. B: four columns of boxes, 64 rows (k) of 64 n each. All rows are 128 bytes, swizzled as wgmma reads them.
constexpr int row_bytes = 128, a_bytes = tile_m * row_bytes, box_bytes = tile_k * row_bytes;
constexpr int stage_bytes = a_bytes + tile_n / 64 * box_bytes, shared_bytes = stages * stage_bytes;

// 64 x 256 outputs a warpgroup: its rows of A meet all columns of B in one instruction.
static __global__ __launch_bounds__(threads, 1) void ring_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, warpgroup = t / 128;
  const std::size_t top = blockIdx.y * tile_m, left = blockIdx.x * tile_n;

  const int a_row = t / 8, b_row = t / 32, box = t % 32 / 8, chunk = t % 8;
  const bf16* from_a = a + (top + a_row) * n + chunk * 8;
  const bf16* from_b = b + static_cast<std::size_t>(b_row) * n + left + t % 32 * 8;
  unsigned char* const to_a = memory + a_row * row_bytes + (chunk ^ a_row % 8) * 16;
  unsigned char* const to_b = memory + a_bytes + box * box_bytes + b_row * row_bytes + (chunk ^ b_row % 8) * 16;
  const auto copy_tile = [&](int slot) {
#pragma unroll
    for (int i = 0; i < tile_m / 32; ++i)
      device::copy_async_16(to_a + slot * stage_bytes + i * 32 * row_bytes, from_a + static_cast<std::size_t>(i * 32) * n);
#pragma unroll
    for (int i = 0; i < tile_k / 8; ++i)
      device::copy_async_16(to_b + slot * stage_bytes + i * 8 * row_bytes, from_b + static_cast<std::size_t>(i * 8) * n);
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };

  // Two products may be under way, of this tile and of the one before; the slots of the two behind it are filled meanwhile.
  constexpr int ahead = stages - 2;
  for (int tile = 0; tile < ahead; ++tile) {
    copy_tile(tile);
    device::commit_copies();
  }
  const std::uint64_t a_first = device::operand(memory + warpgroup * 64 * row_bytes);
  const std::uint64_t b_first = device::operand(memory + a_bytes, 1024, box_bytes);
  float sums[tile_n / 2];
  const int tiles = n / tile_k;
  for (int tile = 0; tile < tiles; ++tile) {
    const int slot = tile % stages;
    device::wait_copies<ahead - 1>();
    device::fence_proxy_async_shared();
    __syncthreads();  // this tile has come, and both warpgroups are done with the one two before it
    if (tile + ahead < tiles) copy_tile((tile + ahead) % stages);
    device::commit_copies();  // also where there was nothing left to copy: waiting counts groups
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int step = 0; step < tile_k / 16; ++step)
      device::wgmma_m64n256k16<device::Major::k, device::Major::mn>(
          sums, device::advance(a_first, slot * stage_bytes + step * 32),
          device::advance(b_first, slot * stage_bytes + step * 16 * row_bytes), tile > 0 || step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  wgmma_gemm::store_sectors(sums, c, static_cast<std::size_t>(n), top + warpgroup * 64, left);
}

}  // namespace aisp::ch10::wgmma_cp_async
