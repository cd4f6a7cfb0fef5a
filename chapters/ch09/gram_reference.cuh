// SPDX-License-Identifier: Apache-2.0
// X^T X in float64, of X as it is and as TF32 rounds it: what tall_skinny_gram is compared with.
#pragma once
#include <aisp/workload.hpp>

#include <vector>

namespace aisp::ch09::gram {

__device__ inline unsigned to_tf32(float x) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

// A block has one row of G, for some of the rows of X.
static __global__ void reference_kernel(const float* x, double2* partial, long long rows) {
  const std::size_t columns = blockDim.x;
  const auto rounded = [](float v) { return static_cast<double>(__uint_as_float(to_tf32(v))); };
  double2 sum{};
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const float a = x[row * columns + blockIdx.y], b = x[row * columns + threadIdx.x];
    sum.x += static_cast<double>(a) * static_cast<double>(b), sum.y += rounded(a) * rounded(b);
  }
  partial[(blockIdx.x * columns + blockIdx.y) * columns + threadIdx.x] = sum;
}

class Reference {
 public:
  Reference(Setup& setup, std::size_t columns)
      : columns_{columns},
        partial_{setup.scratch<double2>(parts * columns * columns, {.name = "sums of the reference"})},
        g_(columns * columns) {}

  void compute(Launch& launch, const float* x, std::size_t rows) {
    std::vector<double2> sums(partial_.size());
    launch(reference_kernel, {dim3{parts, static_cast<unsigned>(columns_)}, static_cast<unsigned>(columns_)}, x, partial_, rows);
    check(cudaMemcpyAsync(sums.data(), partial_, partial_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    g_.assign(g_.size(), {});
    for (std::size_t i = 0; i < sums.size(); ++i) g_[i % g_.size()].x += sums[i].x, g_[i % g_.size()].y += sums[i].y;
  }
  // Returns element i of the diagonal (output 0) or of the triangle below it, row after row.
  double2 of(int output, std::size_t i) const {
    if (output == 0) return g_[i * columns_ + i];
    std::size_t row = 1;
    while (row * (row + 1) / 2 <= i) ++row;
    return g_[row * columns_ + i - row * (row - 1) / 2];
  }

 private:
  static constexpr unsigned parts = 256;
  std::size_t columns_;
  Scratch<double2> partial_;
  std::vector<double2> g_;
};

}  // namespace aisp::ch09::gram
