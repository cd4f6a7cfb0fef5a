// SPDX-License-Identifier: Apache-2.0
// The functions of expressions over eight bf16 in 16 bytes. Compiled by nvcc, and at run time by NVRTC.
#pragma once
#include "rows.cuh"

namespace aisp::ch14 {

using shared::log2_e, shared::pack, shared::packet, shared::unpack;

__device__ __forceinline__ float relu(float x) { return fmaxf(x, 0.0f); }
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + device::exp2_approximate(-log2_e * x)); }
// The tanh form: 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
__device__ __forceinline__ float gelu(float x) {
  constexpr float twice_root_two_over_pi = 1.5957691216057308f, cubic = 0.044715f;
  return x * sigmoid(twice_root_two_over_pi * fmaf(cubic * x * x, x, x));
}

}  // namespace aisp::ch14
