// SPDX-License-Identifier: Apache-2.0
// The column sums of (dY W2^T) * GELU'(P) in float64: what gemm_backward_epilogue's gradient of the bias is compared with. On the
// GPU, since each of them needs every element of its column.
#pragma once
#include <cuda_bf16.h>
#include <aisp/check.hpp>
#include <aisp/workload.hpp>

#include <cmath>
#include <vector>

namespace aisp::ch09::backward {

// Returns the slope of GELU in the approximation by tanh, 0.5 x (1 + tanh(u(x))).
__host__ __device__ inline double gelu_slope(double x) {
  const double root_2_over_pi = 0.7978845608028654, cubic = 0.044715;
  const double t = tanh(root_2_over_pi * (x + cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root_2_over_pi * (1 + 3 * cubic * x * x);
}

constexpr unsigned reference_tile = 64, reference_k = 16, reference_threads = 256;

// A block has 64 x 64 elements, a thread every 16th of their rows and columns.
static __global__ __launch_bounds__(reference_threads) void reference_kernel(const __nv_bfloat16* dy, const __nv_bfloat16* w2,
                                                                             const __nv_bfloat16* p, double* partial, unsigned m,
                                                                             unsigned n, unsigned k) {
  __shared__ double a[reference_k][reference_tile + 1], b[reference_k][reference_tile + 1];
  const unsigned x = threadIdx.x % 16, y = threadIdx.x / 16;
  const unsigned top = blockIdx.y * reference_tile, left = blockIdx.x * reference_tile;
  const auto element = [k](const __nv_bfloat16* of, unsigned row, unsigned rows, unsigned column) {
    return row < rows && column < k ? static_cast<double>(__bfloat162float(of[std::size_t{row} * k + column])) : 0.0;
  };
  double sums[4][4] = {};
  for (unsigned first = 0; first < k; first += reference_k) {
    for (unsigned i = threadIdx.x; i < reference_tile * reference_k; i += reference_threads) {
      const unsigned row = i / reference_k, in_step = i % reference_k;
      a[in_step][row] = element(dy, top + row, m, first + in_step);
      b[in_step][row] = element(w2, left + row, n, first + in_step);
    }
    __syncthreads();
    for (unsigned step = 0; step < reference_k; ++step)
      for (unsigned r = 0; r < 4; ++r)
        for (unsigned c = 0; c < 4; ++c) sums[r][c] += a[step][y + r * 16] * b[step][x + c * 16];
    __syncthreads();
  }
  for (unsigned c = 0; c < 4; ++c) {
    double sum = 0;
    for (unsigned r = 0; r < 4; ++r) {
      const unsigned row = top + y + r * 16, column = left + x + c * 16;
      if (row < m && column < n)
        sum += sums[r][c] * gelu_slope(static_cast<double>(__bfloat162float(p[std::size_t{row} * n + column])));
    }
    a[y][x + c * 16] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= reference_tile || left + threadIdx.x >= n) return;
  double total = 0;
  for (unsigned part = 0; part < 16; ++part) total += a[part][threadIdx.x];
  partial[std::size_t{blockIdx.y} * n + left + threadIdx.x] = total;
}

class Reference {
 public:
  Reference(Setup& setup, std::size_t m, std::size_t n, std::size_t k)
      : m_{m},
        n_{n},
        k_{k},
        parts_{(m + reference_tile - 1) / reference_tile},
        partial_{setup.scratch<double>(parts_ * n, {.name = "sums of the reference"})} {}

  void compute(Launch& launch, const __nv_bfloat16* dy, const __nv_bfloat16* w2, const __nv_bfloat16* p) {
    const auto columns = static_cast<unsigned>((n_ + reference_tile - 1) / reference_tile);
    launch(reference_kernel, {dim3{columns, static_cast<unsigned>(parts_)}, reference_threads}, dy, w2, p, partial_, m_, n_, k_);
    std::vector<double> parts(partial_.size());
    check(cudaMemcpyAsync(parts.data(), partial_, partial_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    sums_.assign(n_, 0);
    for (std::size_t i = 0; i < parts.size(); ++i) sums_[i % n_] += parts[i];
  }
  double column_sum(std::size_t column) const { return sums_[column]; }

 private:
  std::size_t m_, n_, k_, parts_;
  Scratch<double> partial_;
  std::vector<double> sums_;
};

}  // namespace aisp::ch09::backward
