// SPDX-License-Identifier: Apache-2.0
// Eight bf16 in 16 bytes, and the functions of expressions. Compiled by nvcc, and at run time by NVRTC.
#pragma once
#include <aisp/device/matrix.cuh>

namespace aisp::ch14 {

inline constexpr int packet = 8;

// bf16 is the upper half of fp32.
__device__ __forceinline__ void unpack(const uint4& from, float (&x)[packet]) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ uint4 pack(const float (&x)[packet]) {
  return make_uint4(device::narrow_bf16(x[0], x[1]), device::narrow_bf16(x[2], x[3]), device::narrow_bf16(x[4], x[5]),
                    device::narrow_bf16(x[6], x[7]));
}

inline constexpr float log2_e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float relu(float x) { return fmaxf(x, 0.0f); }
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + exp2_approximate(-log2_e * x)); }
// The tanh form: 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
__device__ __forceinline__ float gelu(float x) {
  constexpr float twice_root_two_over_pi = 1.5957691216057308f, cubic = 0.044715f;
  return x * sigmoid(twice_root_two_over_pi * fmaf(cubic * x * x, x, x));
}

}  // namespace aisp::ch14
