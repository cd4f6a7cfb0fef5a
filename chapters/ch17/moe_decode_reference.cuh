// SPDX-License-Identifier: Apache-2.0
// The experts of a decode step in float64, from the bf16 operands and without any rounding in between.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>

namespace aisp::ch17::decode {

struct Experts {
  const __nv_bfloat16 *tokens, *gate_up, *down;
  const int* experts_of;
  const float* shares;
  int hidden, ffn, top_k;
};

__device__ inline double dot_by_warp(const __nv_bfloat16* a, const __nv_bfloat16* b, int count) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += device::warp_size)
    sum += static_cast<double>(__bfloat162float(a[i])) * static_cast<double>(__bfloat162float(b[i]));
  return device::warp_sum(sum);
}

// activated[slot][f]. A warp for each element.
static __global__ void activated_kernel(Experts at, double* activated) {
  const std::size_t f = blockIdx.x, slot = blockIdx.y, expert = static_cast<std::size_t>(at.experts_of[slot]);
  const __nv_bfloat16* const token = at.tokens + slot / at.top_k * at.hidden;
  const __nv_bfloat16* const gate = at.gate_up + (expert * 2 * at.ffn + f) * at.hidden;
  const double g = dot_by_warp(token, gate, at.hidden);
  const double u = dot_by_warp(token, gate + static_cast<std::size_t>(at.ffn) * at.hidden, at.hidden);
  if (threadIdx.x == 0) activated[slot * at.ffn + f] = g / (1 + exp(-g)) * u;
}

// combined[token][i]. A warp for each element.
static __global__ void combined_kernel(Experts at, const double* activated, double* combined) {
  const std::size_t i = blockIdx.x, token = blockIdx.y;
  double sum = 0;
  for (std::size_t slot = token * at.top_k; slot < (token + 1) * at.top_k; ++slot) {
    const __nv_bfloat16* const row = at.down + (static_cast<std::size_t>(at.experts_of[slot]) * at.hidden + i) * at.ffn;
    double part = 0;
    for (int f = static_cast<int>(threadIdx.x); f < at.ffn; f += device::warp_size)
      part += activated[slot * at.ffn + f] * static_cast<double>(__bfloat162float(row[f]));
    sum += static_cast<double>(at.shares[slot]) * device::warp_sum(part);
  }
  if (threadIdx.x == 0) combined[token * at.hidden + i] = sum;
}

}  // namespace aisp::ch17::decode
