// SPDX-License-Identifier: Apache-2.0
// y = x W^T for few rows of x, the product of a decode step: weights are read once, through a ring that TMA fills (sm_90), and
// multiplied as the 16-row operand of mma.sync, so that a row of x is a column. Every sum goes along K in steps of 16, from the
// first to the last, whatever the number of rows: those are the bits that all products of the decoder have.
#pragma once
#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>

#include <cuda_bf16.h>

namespace aisp::decoder {

using bf16 = __nv_bfloat16;

constexpr int box_depth = 64, boxes = 4, part = box_depth * boxes;  // of K: a box of TMA has 128 bytes a row, a stage four boxes
constexpr int unit = 16;                                            // outputs of a warp
constexpr int most_stages = 16, most_warps = 8;
constexpr int stage_bytes(int warps, int columns) { return (warps * unit + columns) * part * 2; }

struct SkinnyProduct {
  void* y;           // [rows][outputs]
  int first_output;  // in the map of weights, which has all layers
  int outputs, depth, rows;
};

// Maps: [outputs of all layers][depth] in boxes of as many rows as a block has outputs, and [rows][depth] in boxes of `columns`
// rows, of which those that x does not have are zeros and their results nowhere stored.
template <int columns, class Out>
__global__ void skinny_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x,
                              SkinnyProduct product, int stages) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ std::uint64_t full[most_stages], empty[most_stages];
  const int warps = static_cast<int>(blockDim.x) / 32 - 1, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, tile = warps * unit, block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x), weight_box = tile * box_depth * 2, x_box = columns * box_depth * 2;
  const int tiles = (product.outputs + tile - 1) / tile, parts = product.depth / part;
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      device::barrier_init(&full[s], 1);
      device::barrier_init(&empty[s], static_cast<unsigned>(warps));
    }
    device::fence_barrier_init();
  }
  __syncthreads();
  device::let_dependents_start();

  const int steps = ((tiles - 1 - block) / blocks + 1) * parts, bytes = stage_bytes(warps, columns);
  if (warp == warps) {
    if (lane != 0) return;
    const auto load_weights = [&](int step) {
      unsigned char* const to = ring + step % stages * bytes;
      device::barrier_arrive_expect(&full[step % stages], static_cast<unsigned>(bytes));
      for (int i = 0; i < boxes; ++i)
        device::tensor_load_2d(to + i * weight_box, &weights, step % parts * part + i * box_depth,
                               product.first_output + (block + step / parts * blocks) * tile, &full[step % stages]);
    };
    const auto load_x = [&](int step) {
      unsigned char* const to = ring + step % stages * bytes + boxes * weight_box;
      for (int i = 0; i < boxes; ++i)
        device::tensor_load_2d(to + i * x_box, &x, step % parts * part + i * box_depth, 0, &full[step % stages]);
    };
    // Weights are requested before its predecessor has ended, x only then.
    const int ahead = steps < stages ? steps : stages;
    for (int step = 0; step < ahead; ++step) load_weights(step);
    device::wait_for_previous_kernel();
    for (int step = 0; step < ahead; ++step) load_x(step);
    for (int step = ahead; step < steps; ++step) {
      device::barrier_wait(&empty[step % stages], static_cast<unsigned>(step / stages + 1) % 2);
      load_weights(step);
      load_x(step);
    }
    return;
  }

  device::wait_for_previous_kernel();
  float sums[columns / 8][4] = {};
  const int row = warp * unit + lane % 16, column = lane % 8;
  int slot = 0, round = 0, of_tile = 0, output = block * tile + warp * unit + lane / 4;
  for (int step = 0; step < steps; ++step) {
    const std::uint32_t stage = device::shared_address(ring) + static_cast<unsigned>(slot * bytes);
    const std::uint32_t own_weights = stage + static_cast<unsigned>(row * 128);
    const std::uint32_t own_x = stage + static_cast<unsigned>(boxes * weight_box + column * 128);
    device::barrier_wait(&full[slot], static_cast<unsigned>(round));
#pragma unroll
    for (int k = 0; k < part / 32; ++k) {
      const int box = k / 2, chunk = k % 2 * 4;
      unsigned a[2][4];
      device::load_matrices(a[0], own_weights + box * weight_box + ((chunk + lane / 16) ^ row % 8) * 16);
      device::load_matrices(a[1], own_weights + box * weight_box + ((chunk + 2 + lane / 16) ^ row % 8) * 16);
#pragma unroll
      for (int group = 0; group < columns / 8; ++group) {
        unsigned b[4];
        device::load_matrices(b, own_x + box * x_box + group * 1024 + ((chunk + lane / 8) ^ column) * 16);
        device::mma_bf16(sums[group], a[0], b[0], b[1]);
        device::mma_bf16(sums[group], a[1], b[2], b[3]);
      }
    }
    // The last of ldmatrix may still be under way, and the arrival does not wait for them: where other kernels hold the SM's
    // shared memory up, TMA would be faster than they are.
    device::fence_block();
    __syncwarp();
    if (lane == 0) device::barrier_arrive(&empty[slot]);
    if (++slot == stages) slot = 0, round ^= 1;
    if (++of_tile < parts) continue;
    Out* const y = static_cast<Out*>(product.y);
#pragma unroll
    for (int group = 0; group < columns / 8; ++group)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int to_row = group * 8 + lane % 4 * 2 + i % 2, to = output + i / 2 * 8;
        if (to_row < product.rows && to < product.outputs)
          y[static_cast<std::size_t>(to_row) * product.outputs + to] = static_cast<Out>(sums[group][i]);
        sums[group][i] = 0;
      }
    of_tile = 0, output += blocks * tile;
  }
}

}  // namespace aisp::decoder
