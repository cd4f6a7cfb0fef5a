// SPDX-License-Identifier: Apache-2.0
// Statistics of tensors in float64, by a plain kernel on the GPU: the tensors are gigabytes.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/workload.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace aisp::ch13 {

// Computes for each of 64 parts of a tensor (blockIdx.y): sum, squares, least, largest, zeros, not finite.
inline constexpr unsigned reference_threads = 256, reference_parts = 64, reference_values = 6;
static __global__ __launch_bounds__(reference_threads) void reference_kernel(const __nv_bfloat16* values, std::size_t count,
                                                                             std::size_t pitch, double* results) {
  __shared__ double parts[reference_threads / 32];
  constexpr double infinite = __builtin_huge_val();
  double sum = 0, squares = 0, least = infinite, largest = -infinite, zeros = 0, not_finite = 0;
  for (std::size_t i = blockIdx.x * reference_threads + threadIdx.x; i < count; i += reference_parts * reference_threads) {
    const double x = __bfloat162float(values[blockIdx.y * pitch + i]);
    if (isfinite(x)) {
      sum += x, squares += x * x;
      least = fmin(least, x), largest = fmax(largest, x);
      if (x == 0) zeros += 1;
    } else not_finite += 1;
  }
  sum = device::block_sum(sum, parts);
  squares = device::block_sum(squares, parts);
  least = device::block_reduce(least, infinite, device::Min{}, parts);
  largest = device::block_reduce(largest, -infinite, device::Max{}, parts);
  zeros = device::block_sum(zeros, parts);
  not_finite = device::block_sum(not_finite, parts);
  if (threadIdx.x != 0) return;
  double* const to = results + (std::size_t{blockIdx.y} * reference_parts + blockIdx.x) * reference_values;
  to[0] = sum, to[1] = squares, to[2] = least, to[3] = largest, to[4] = zeros, to[5] = not_finite;
}

class StatisticsReference {
 public:
  struct Tensor {
    double sum = 0, squares = 0, least = __builtin_huge_val(), largest = -__builtin_huge_val(), zeros = 0, not_finite = 0;
  };

  StatisticsReference(Setup& setup, std::size_t tensors)
      : partial_{setup.scratch<double>(tensors * reference_parts * reference_values, {.name = "reference"})}, tensors_(tensors) {}

  void compute(Launch& launch, const __nv_bfloat16* values, std::size_t count, std::size_t pitch) {
    launch(reference_kernel, {dim3{reference_parts, static_cast<unsigned>(tensors_.size())}, reference_threads}, values, count,
           pitch, partial_);
    std::vector<double> parts(partial_.size());
    check(cudaMemcpyAsync(parts.data(), partial_, partial_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      Tensor all;
      for (std::size_t p = 0; p < reference_parts; ++p) {
        const double* const part = parts.data() + (t * reference_parts + p) * reference_values;
        all.sum += part[0], all.squares += part[1], all.zeros += part[4], all.not_finite += part[5];
        all.least = std::min(all.least, part[2]), all.largest = std::max(all.largest, part[3]);
      }
      tensors_[t] = all;
    }
  }
  const Tensor& of(std::size_t tensor) const { return tensors_[tensor]; }

 private:
  Scratch<double> partial_;
  std::vector<Tensor> tensors_;
};

}  // namespace aisp::ch13
