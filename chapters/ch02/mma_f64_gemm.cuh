// SPDX-License-Identifier: Apache-2.0
// A GEMM on the FP64 tensor cores: mma.sync fed from a ring of slabs that cp.async fills. C = A B, row-major, n x n with n a
// multiple of 128.
#pragma once
#include <aisp/device/async_copy.cuh>

#include <cstddef>

namespace aisp::ch02::mma_f64 {

constexpr int threads = 128, rows = 64, columns = 128, depth = 16, stages = 3;  // 64 x 128 outputs a block
constexpr int a_chunks = rows * depth / 2, b_chunks = columns * depth / 2, stage_chunks = a_chunks + b_chunks;  // of 16 bytes
constexpr int shared_bytes = stages * stage_chunks * 16;

__device__ inline void multiply_add(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
#if AISP_SM >= 90
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]),
        "d"(b[3]));
#else
  device::unsupported_architecture();
#endif
}

// Each warp makes 64 x 32 outputs from a ring of slabs, as their transpose: B's columns are the 16 rows of an mma, A's rows its 8
// columns. An mma does not care which of its rows, columns and values of k is which, as long as all operands agree, so lane l,
// with g = l / 4 and t = l % 4, takes what lies side by side in memory: columns 2g and 2g + 1 of B, and of k 2t, 2t + 1 and these
// + 8 of A. That way each 16-byte load fills neighbouring registers of an operand; in any other arrangement there were more moves
// between registers than everything else together. Chunks lie at XOR-ed places (A: 4 (row % 2), B: 2 (row / 2 % 4)), so that
// eight lanes that read together always meet all 32 banks. Two blocks share an SM: while the warps of one wait for a slab and
// fetch their first operands, the tensor cores work for the other.
static __global__ __launch_bounds__(threads, 2) void ring_kernel(const double* a, const double* b, double* c, int n) {
  extern __shared__ __align__(128) double2 ring[];
  const int thread = threadIdx.x, g = thread % 32 / 4, t = thread % 4, warp = thread / 32;
  const std::size_t top = blockIdx.y * rows, left = blockIdx.x * columns;

  const double* from_a = a + (top + thread / 8) * n + thread % 8 * 2;
  const double* from_b = b + static_cast<std::size_t>(thread / 64) * n + left + thread % 64 * 2;
  const auto copy_quarter = [&](int slot, int quarter) {
    const int a_row = thread / 8 + quarter * 16;
    double2* const to = ring + slot * stage_chunks;
    device::copy_async_16(to + a_row * 8 + (thread % 8 ^ a_row % 2 * 4), from_a + static_cast<std::size_t>(quarter * 16) * n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int b_row = thread / 64 + quarter * 4 + half * 2;
      device::copy_async_16(to + a_chunks + b_row * 64 + (thread % 64 ^ b_row / 2 % 4 * 2),
                            from_b + static_cast<std::size_t>(quarter * 4 + half * 2) * n);
    }
  };
  const auto finish_slab = [&] {  // also where there was nothing left to copy: waiting counts groups
    device::commit_copies();
    from_a += depth;
    from_b += static_cast<std::size_t>(depth) * n;
  };
  for (int slot = 0; slot < stages - 1; ++slot) {
    for (int quarter = 0; quarter < 4; ++quarter) copy_quarter(slot, quarter);
    finish_slab();
  }

  const int a_lane = g * 8 + (t ^ g % 2 * 4), b_lane = a_chunks + 2 * t * 64 + warp * 16 + (g ^ 2 * t);
  double x[2][4], y[2][8], sums[2][8][4] = {};
  const auto load_rows = [&](double(&to)[4], const double2* slab, int j) {  // eight of A
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of k
      const double2 two = slab[(a_lane ^ half * 4) + j * 64];
      to[half * 2] = two.x, to[half * 2 + 1] = two.y;
    }
  };
  int reading = 0, writing = stages - 1;
  for (int k = 0; k < n; k += depth) {
    device::wait_copies<stages - 2>();
    __syncthreads();  // this slab is there for all threads, and all have read the one that is overwritten now
    const double2* const slab = ring + reading * stage_chunks;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const double2 two = slab[b_lane + (i / 2 * 8 + i % 2) * 64 + p * 8];
        y[p][i * 2] = two.x, y[p][i * 2 + 1] = two.y;
      }
    load_rows(x[0], slab, 0);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j < 7) load_rows(x[(j + 1) % 2], slab, j + 1);
      if (j < 4 && k + (stages - 1) * depth < n) copy_quarter(writing, j);
#pragma unroll
      for (int p = 0; p < 2; ++p) multiply_add(sums[p][j], y[p], x[j % 2]);
    }
    finish_slab();
    writing = reading;
    reading = (reading + 1) % stages;
  }

  // Sums 0 and 2 are neighbours in row 2t, 1 and 3 in row 2t + 1.
  double* const to = c + (top + 2 * t) * n + left + warp * 32 + 2 * g;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int v = 0; v < 2; ++v)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        *reinterpret_cast<double2*>(to + static_cast<std::size_t>(j * 8 + v) * n + p * 16) =
            make_double2(sums[p][j][v], sums[p][j][v + 2]);
}

}  // namespace aisp::ch02::mma_f64
