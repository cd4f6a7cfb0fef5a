// SPDX-License-Identifier: Apache-2.0
// Many independent products of 32 x 256 by 256 x 256 in TF32, each by one block: all of A lies in shared memory, B streams
// through a ring, and several blocks on an SM keep enough bytes under way.
#pragma once
#include <aisp/device/async_copy.cuh>

#include <cstddef>

namespace aisp::ch01::small_gemm {

constexpr int m = 32, n = 256, k = 256;
constexpr int a_size = m * k, b_size = k * n, c_size = m * n;  // elements of one matrix

constexpr int threads = 256;
constexpr int blocks_per_sm = 3;      // 320 blocks on 132 SMs: with three to an SM none waits for a second wave
constexpr int depth = 8, stages = 5;  // rows of B in a slab, slabs in the ring: four of them, 32 KiB a block, are under way
constexpr int chunks = 256 * 4 / 16;  // 16-byte chunks in a row of A or B
constexpr int slab_chunks = depth * chunks;
constexpr int shared_bytes = (m * chunks + stages * slab_chunks) * 16;  // all of A, and the ring

// The tensor core ignores the lower 13 bits; rounding first makes the error half as large and free of bias.
__device__ inline unsigned to_tf32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One block, one matrix; each warp makes 32 x 32 outputs. An mma does not care which of its 8 values of k and which of its 8
// columns is which, as long as A, B and C agree, so lanes take what lies side by side: of k the neighbours 2t and 2t + 1, of the
// columns four in a row, which serve four mma. Lane l has g = l / 4 and t = l % 4. Chunks are stored at XOR-ed places (A: 2 (row
// % 4), B: row / 2), so that lanes that read in the same cycle always meet different banks.
static __global__ __launch_bounds__(threads, blocks_per_sm) void fused_tiles_kernel(const float* a, const float* b, float* c) {
  extern __shared__ __align__(128) float4 memory[];
  float4* const tile_a = memory;
  float4* const ring = memory + m * chunks;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const auto* from_a = reinterpret_cast<const float4*>(a + static_cast<std::size_t>(blockIdx.x) * a_size);
  const auto* from_b = reinterpret_cast<const float4*>(b + static_cast<std::size_t>(blockIdx.x) * b_size);

  const auto copy_slab = [&](int slab, int slot) {
#pragma unroll
    for (int first = 0; first < slab_chunks; first += threads) {
      const int i = first + thread;
      device::copy_async_16(ring + slot * slab_chunks + (i ^ i / chunks / 2), from_b + slab * slab_chunks + i);
    }
  };
#pragma unroll
  for (int first = 0; first < m * chunks; first += threads) {
    const int i = first + thread;
    device::copy_async_16(tile_a + (i ^ i / chunks % 4 * 2), from_a + i);
  }
#pragma unroll
  for (int slab = 0; slab < stages - 1; ++slab) {
    copy_slab(slab, slab);
    device::commit_copies();  // A belongs to the first group
  }

  // This lane reads 8 bytes a slab of an A row, and one chunk in each of rows 2t and 2t + 1 of a B slab.
  const auto* a_pairs = reinterpret_cast<const float2*>(tile_a) + g * chunks * 2 + t % 2;
  const float4* const b_lane = ring + 2 * t * chunks + ((warp * 8 + g / 2 + g % 2 * 4) ^ t);
  float sums[2][4][4] = {};
  int reading = 0, writing = stages - 1;
  for (int slab = 0; slab < k / depth; ++slab) {
    device::wait_copies<stages - 2>();
    __syncthreads();  // this slab is there for all threads, and all have read the one that is overwritten now
    if (slab + stages - 1 < k / depth) copy_slab(slab + stages - 1, writing);
    device::commit_copies();  // also where nothing was left to copy: waiting counts groups

    const float4 y[2] = {b_lane[reading * slab_chunks], b_lane[reading * slab_chunks + chunks]};
    const unsigned low[4] = {to_tf32(y[0].x), to_tf32(y[0].y), to_tf32(y[0].z), to_tf32(y[0].w)};
    const unsigned high[4] = {to_tf32(y[1].x), to_tf32(y[1].y), to_tf32(y[1].z), to_tf32(y[1].w)};
    const int chunk = (2 * slab + t / 2) ^ g % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 upper = a_pairs[(half * 16 * chunks + chunk) * 2], lower = a_pairs[((half * 16 + 8) * chunks + chunk) * 2];
      const unsigned x[4] = {to_tf32(upper.x), to_tf32(lower.x), to_tf32(upper.y), to_tf32(lower.y)};
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_add(sums[half][j], x, low[j], high[j]);
    }
    writing = reading;
    reading = reading + 1 == stages ? 0 : reading + 1;
  }

  // Value v of the four mma together: four neighbouring columns of row g (v < 2) or g + 8; four lanes write 64 bytes.
  auto* const to = reinterpret_cast<float4*>(c + static_cast<std::size_t>(blockIdx.x) * c_size) + g * chunks + warp * 8 + t;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int v = 0; v < 4; ++v)
      to[(half * 16 + v / 2 * 8) * chunks + v % 2 * 4] =
          make_float4(sums[half][0][v], sums[half][1][v], sums[half][2][v], sums[half][3][v]);
}

}  // namespace aisp::ch01::small_gemm
