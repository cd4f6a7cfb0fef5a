// SPDX-License-Identifier: Apache-2.0
// Y = X W with e4m3 operands that carry a scale for every 128 elements along K: x[m][k] one for each row (x_scales[k / 128][m]),
// w[n][k] one for each 128 x 128 block (w_scales[n / 128][k / 128]), as DeepSeek-V3 is trained and served (arXiv 2412.19437,
// section 3.3). The tensor cores cannot apply them: after every 128 of K the consumers take the sums out and add them, scaled, to
// others in fp32. What the roles of the warps are is left to the kernels.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_fp8.cuh>

#include <cuda_fp8.h>

namespace aisp::ch10::block_scaled_gemm {

using wgmma_gemm::bf16, wgmma_gemm::warpgroup_threads, wgmma_gemm::Cursor;
using e4m3 = __nv_fp8_e4m3;
constexpr int block = 128;  // elements with a scale of their own, and bytes of a row of the swizzle
constexpr int tile_m = 128, consumers = 2;

struct Operands {
  using Element = e4m3;
  static constexpr int tile_k = block;
};

// A stage also holds the scales of its rows of x.
template <int tile_n, int stages>
struct Ring : wgmma_gemm::Ring<tile_m, tile_n, stages, Operands> {
  static constexpr int parts = tile_n / block;
  static constexpr unsigned stage_bytes =
      wgmma_gemm::Ring<tile_m, tile_n, stages, Operands>::stage_bytes + tile_m * sizeof(float);
  alignas(16) float x_scales[stages][tile_m];
};

// What every kernel is given: one tile a block.
struct Problem {
  const float *x_scales, *w_scales;
  bf16* y;
  int m, n, steps;

  template <class R>
  __device__ int left() const {
    return static_cast<int>(blockIdx.x) * R::tile_n;
  }
  __device__ int top() const { return static_cast<int>(blockIdx.y) * tile_m; }
};

// Asks for a step's 128 of K; its stage is free. By one thread.
template <class R>
__device__ __forceinline__ void load(R& ring, int stage, int step, const CUtensorMap* x, const CUtensorMap* w,
                                     const Problem& problem) {
  std::uint64_t* const full = &ring.full[stage];
  device::barrier_arrive_expect(full, R::stage_bytes);
  device::tensor_load_2d(ring.a[stage], x, step * block, problem.top(), full);
  device::tensor_load_2d(ring.b[stage], w, step * block, problem.left<R>(), full);
  device::bulk_load(ring.x_scales[stage], problem.x_scales + static_cast<std::size_t>(step) * problem.m + problem.top(),
                    tile_m * sizeof(float), full);
}

// One consumer warpgroup's 64 rows of a tile.
template <class R>
struct Consumer {
  R& ring;
  const Problem& problem;
  int warpgroup;

  // Queues the products of 128 columns with the 128 of K that a stage holds.
  __device__ __forceinline__ void multiply(int stage, int part, float (&sums)[block / 2]) const {
    const std::uint64_t x = device::operand(ring.a[stage] + warpgroup * 64 * block);
    const std::uint64_t w = device::operand(ring.b[stage] + part * block * block);
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < block; i += 32) device::wgmma_m64n128k32_e4m3(sums, device::advance(x, i), device::advance(w, i), i > 0);
    device::wgmma_commit();
  }

  // The scales of this thread's two rows.
  __device__ __forceinline__ float2 row_scales(int stage) const {
    const int t = threadIdx.x % warpgroup_threads, row = warpgroup * 64 + t / 32 * 16 + t % 32 / 4;
    return {ring.x_scales[stage][row], ring.x_scales[stage][row + 8]};
  }
  __device__ __forceinline__ float block_scale(int step, int part) const {
    return __ldg(problem.w_scales + (problem.left<R>() / block + part) * problem.steps + step);
  }

  static __device__ __forceinline__ void promote(const float (&sums)[block / 2], float2 rows, float columns, float* scaled) {
    const float upper = rows.x * columns, lower = rows.y * columns;
#pragma unroll
    for (int i = 0; i < block / 2; i += 4) {
      scaled[i] = fmaf(sums[i], upper, scaled[i]);
      scaled[i + 1] = fmaf(sums[i + 1], upper, scaled[i + 1]);
      scaled[i + 2] = fmaf(sums[i + 2], lower, scaled[i + 2]);
      scaled[i + 3] = fmaf(sums[i + 3], lower, scaled[i + 3]);
    }
  }

  // A whole step. The columns are taken in parts of 128, so that 64 registers hold what the tensor cores sum up. `meanwhile` is
  // called when the first products are under way, `done` when the stage has been read.
  template <class Meanwhile, class Done>
  __device__ __forceinline__ void add_step(int stage, int step, float (&scaled)[R::tile_n / 2], const Meanwhile& meanwhile,
                                           const Done& done) const {
    const float2 rows = row_scales(stage);
#pragma unroll
    for (int part = 0; part < R::parts; ++part) {
      float sums[block / 2];
      multiply(stage, part, sums);
      if (part == 0) meanwhile();
      const float columns = block_scale(step, part);
      device::wgmma_wait<0>();
      device::wgmma_touch(sums);
      if (part == R::parts - 1) done();
      promote(sums, rows, columns, scaled + part * (block / 2));
    }
  }

  __device__ __forceinline__ void store(const float (&scaled)[R::tile_n / 2]) const {
    wgmma_gemm::store_sectors(scaled, problem.y, problem.n, problem.top() + warpgroup * 64, problem.left<R>());
  }
};

template <int count>
__device__ __forceinline__ void clear(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) sum = 0;
}

}  // namespace aisp::ch10::block_scaled_gemm
