// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>

namespace aisp::ch13 {

// The forward pass's share, before anything is timed, and in float64 of the reference. A block of
// 256 threads has a row.
template <class Real>
static __global__ __launch_bounds__(256) void inverse_rms_kernel(const __nv_bfloat16* x, Real* inverse_rms, unsigned columns) {
  __shared__ Real parts[256 / 32];
  Real sum = 0;
  for (unsigned i = threadIdx.x; i < columns; i += 256) {
    const Real value = __bfloat162float(x[std::size_t{blockIdx.x} * columns + i]);
    sum += value * value;
  }
  sum = device::block_sum(sum, parts);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = 1 / sqrt(sum / columns + Real{1e-6f});
}

}  // namespace aisp::ch13
