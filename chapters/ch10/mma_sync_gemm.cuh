// SPDX-License-Identifier: Apache-2.0
// A GEMM on warp-level tensor core instructions: mma.sync fed by ldmatrix from a ring of tiles that cp.async fills. C = A B,
// row-major, n x n with n a multiple of 256.
#pragma once
#include <aisp/device/async_copy.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>

#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::ch10::mma_sync {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr int tile_m = 128, tile_n = 256, tile_k = 64, steps = tile_k / 16;
constexpr int a_pitch = tile_k * 2, b_pitch = tile_n * 2;  // bytes
constexpr int a_bytes = tile_m * a_pitch, stage_bytes = a_bytes + tile_k * b_pitch;
constexpr int most_stages = 4;
constexpr int shared_bytes(int stages) { return stages * stage_bytes; }

// 128 x 256 outputs a block, 64 x 64 a warp: the largest warp tile whose sums fit in registers, because an element that was read
// from shared memory is used 64 times there. Within a row, the 16-byte chunk c lies at c ^ (row % 8): ldmatrix reads the same
// chunk of eight rows, cp.async writes eight chunks of one row, and both meet eight different groups of banks.
template <int stages>
static __global__ __launch_bounds__(threads, 1) void ring_kernel(const bf16* a, const bf16* b, bf16* c, int n) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, warp_m = warp / 4, warp_n = warp % 4;
  const std::size_t top = blockIdx.y * tile_m, left = blockIdx.x * tile_n;

  const int a_row = t / 8, b_row = t / 32;  // and every 32nd (A) or 8th (B) after that
  const bf16* from_a = a + (top + a_row) * n + t % 8 * 8;
  const bf16* from_b = b + static_cast<std::size_t>(b_row) * n + left + t % 32 * 8;
  unsigned char* const to_a = memory + a_row * a_pitch + (t % 8 ^ a_row % 8) * 16;
  unsigned char* const to_b = memory + a_bytes + b_row * b_pitch + (t % 32 ^ b_row % 8) * 16;
  const auto copy_quarter = [&](int slot, int quarter) {
    device::copy_async_16(to_a + slot * stage_bytes + quarter * 32 * a_pitch,
                          from_a + static_cast<std::size_t>(quarter * 32) * n);
#pragma unroll
    for (int i = 2 * quarter; i < 2 * quarter + 2; ++i)
      device::copy_async_16(to_b + slot * stage_bytes + i * 8 * b_pitch, from_b + static_cast<std::size_t>(i * 8) * n);
  };
  const auto finish_tile = [&] {  // also where there was nothing left to copy: waiting counts groups
    device::commit_copies();
    from_a += tile_k;
    from_b += static_cast<std::size_t>(tile_k) * n;
  };

  // Lane l addresses row l % 16 of a fragment, chunk l / 16. The chunk of another step or column differs in bits that XOR can
  // flip.
  const int swizzled = (lane / 16 ^ lane % 8) * 16;
  const std::uint32_t a_lane = device::shared_address(memory) + (warp_m * 64 + lane % 16) * a_pitch + swizzled;
  const std::uint32_t b_lane = device::shared_address(memory) + a_bytes + lane % 16 * b_pitch + warp_n * 128 + swizzled;
  unsigned x[2][4][4], y[2][4][4];  // fragments of this step and of the next
  const auto load_fragments = [&](int set, int slot, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) device::load_matrices(x[set][i], (a_lane ^ step * 32) + slot * stage_bytes + i * 16 * a_pitch);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      device::load_matrices_transposed(y[set][i], (b_lane ^ i * 32) + slot * stage_bytes + step * 16 * b_pitch);
  };

  for (int slot = 0; slot < stages - 1; ++slot) {
    for (int quarter = 0; quarter < 4; ++quarter) copy_quarter(slot, quarter);
    finish_tile();
  }
  device::wait_copies<stages - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);
  float sums[4][8][4] = {};
  int reading = 0, writing = stages - 1;
  for (int left_to_copy = n / tile_k - (stages - 1); left_to_copy > -(stages - 1); --left_to_copy) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (left_to_copy > 0) copy_quarter(writing, step);
      if (step == steps - 1) {  // the last fragments of this tile are in registers: on to the next
        finish_tile();
        device::wait_copies<stages - 2>();
        __syncthreads();
        writing = reading;
        reading = (reading + 1) % stages;
      }
      load_fragments((step + 1) % 2, reading, (step + 1) % steps);  // after the last tile: unused
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
          device::mma_bf16(sums[i][j], x[step % 2][i], y[step % 2][j / 2][j % 2 * 2], y[step % 2][j / 2][j % 2 * 2 + 1]);
    }
  }

  // Through shared memory, so that warps write whole rows of 512 bytes.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<unsigned*>(memory + (warp_m * 64 + i * 8 + lane / 4) * b_pitch + ((warp_n * 8 + j) ^ lane / 4) * 16 +
                                   lane % 4 * 4) = device::narrow_bf16(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
  __syncthreads();
#pragma unroll
  for (int row = b_row; row < tile_m; row += 8)
    *reinterpret_cast<uint4*>(c + (top + row) * n + left + t % 32 * 8) =
        *reinterpret_cast<const uint4*>(memory + row * b_pitch + (t % 32 ^ row % 8) * 16);
}

// Four stages on an H100; an A100 has room for three, GPUs with 99 KiB a block for two.
template <int stages = most_stages>
void multiply(Launch& launch, dim3 tiles, const bf16* a, const bf16* b, bf16* c, std::size_t n) {
  if constexpr (stages > 2)
    if (shared_bytes(stages) > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))
      return multiply<stages - 1>(launch, tiles, a, b, c, n);
  launch(ring_kernel<stages>, {tiles, threads, shared_bytes(stages)}, a, b, c, n);
}

}  // namespace aisp::ch10::mma_sync
