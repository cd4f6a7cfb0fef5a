// SPDX-License-Identifier: Apache-2.0
// How a warp of an optimizer holds 256 neighbours of fp32 or bf16, and how it makes codes of E4M3 of them and reads them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "rows.cuh"

namespace aisp::ch13 {

using shared::bf16, shared::packet;

inline constexpr unsigned block_quads = 64;  // a warp's

// Philox4x32 with seven rounds, the fewest that pass its authors' tests: 128 bits, 16 for each of eight values.
struct Random {
  unsigned words[4];
  __device__ __forceinline__ unsigned of(int value) const { return words[value / 2] >> (value % 2 * 16) & 0xFFFF; }
};
__device__ __forceinline__ Random philox(unsigned thread, unsigned moment, unsigned step) {
  uint4 state = make_uint4(thread, moment, step, 0);
  unsigned key0 = 0x2545F491u, key1 = 0x4F6CDD1Du;
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, state.x), low0 = 0xD2511F53u * state.x;
    const unsigned high1 = __umulhi(0xCD9E8D57u, state.z), low1 = 0xCD9E8D57u * state.z;
    state = make_uint4(high1 ^ state.y ^ key0, low1, high0 ^ state.w ^ key1, low0);
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{state.x, state.y, state.z, state.w}};
}

// A lane's eight values of a block: two quads that lie 32 apart, so that the accesses of a warp have no gaps.
struct Place {
  std::size_t block, quad[2];
  bool exists[2];
  unsigned thread, step;  // of the random numbers
};

// Tensors of equal length lie one after the other; the last block of each may be short.
struct Blocks {
  unsigned tensor_quads, of_tensor, all;
};
__device__ __forceinline__ Place place_of(const Blocks& blocks, unsigned block, unsigned step) {
  const unsigned tensor = block / blocks.of_tensor, lane = threadIdx.x % 32;
  const unsigned first = block % blocks.of_tensor * block_quads + lane;
  const std::size_t base = std::size_t{tensor} * blocks.tensor_quads + first;
  return {.block = block,
          .quad = {base, base + 32},
          .exists = {first < blocks.tensor_quads, first + 32 < blocks.tensor_quads},
          .thread = block * 32 + lane,
          .step = step};
}

template <class Use>
__device__ __forceinline__ void for_quads(const Place& at, Use use) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (at.exists[half]) use(at.quad[half], 4 * half);
}
__device__ __forceinline__ void load(const float* from, const Place& at, float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    const float4 values = reinterpret_cast<const float4*>(from)[quad];
    x[first] = values.x, x[first + 1] = values.y, x[first + 2] = values.z, x[first + 3] = values.w;
  });
}
__device__ __forceinline__ void load(const bf16* from, const Place& at, float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    const uint2 words = reinterpret_cast<const uint2*>(from)[quad];
    x[first] = __uint_as_float(words.x << 16), x[first + 1] = __uint_as_float(words.x & 0xFFFF0000u);
    x[first + 2] = __uint_as_float(words.y << 16), x[first + 3] = __uint_as_float(words.y & 0xFFFF0000u);
  });
}
__device__ __forceinline__ void store(float* to, const Place& at, const float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    reinterpret_cast<float4*>(to)[quad] = make_float4(x[first], x[first + 1], x[first + 2], x[first + 3]);
  });
}
__device__ __forceinline__ void store(bf16* to, const Place& at, const float (&x)[packet]) {
  for_quads(at, [&](std::size_t quad, int first) {
    reinterpret_cast<uint2*>(to)[quad] =
        make_uint2(device::narrow_bf16(x[first], x[first + 1]), device::narrow_bf16(x[first + 2], x[first + 3]));
  });
}

enum class Rounding { nearest, stochastic, through_codes };

// Values that E4M3 holds, in units of 2^-9 below 2^-6 and with three bits of mantissa above: up with the probability of what is
// cut off. `x` is not negative.
__device__ __forceinline__ float round_to_e4m3(float x, unsigned random) {
  constexpr float least_normal = 0x1p-6f;
  const float offset = x < least_normal ? least_normal : 0;  // in the next binade, whose steps are the same
  return __uint_as_float((__float_as_uint(x + offset) + (random << 4)) & 0xFFF00000u) - offset;
}

// The scale of a block whose largest magnitude this is, and what values are multiplied by before they are rounded.
struct Scale {
  float scale, inverse;
};
__device__ __forceinline__ Scale scale_of(float largest) {
  constexpr float largest_code = 448;
  if (!(largest > 1e-30f)) return {0, 0};
  return {largest / largest_code, largest_code / largest};
}
// Eight values in units of the scale, as E4M3 holds them. No root of a second moment becomes 0 that is not: steps would explode.
template <Rounding rounding, bool is_root>
__device__ __forceinline__ void to_codes(const float (&x)[packet], float inverse, const Place& at, uint2& codes) {
  Random random{};
  if constexpr (rounding == Rounding::stochastic) random = philox(at.thread, is_root ? 1 : 0, at.step);
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < packet; i += 2) {
    float two[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float scaled = x[i + j] * inverse;
      if constexpr (is_root) scaled = x[i + j] > 0 ? fmaxf(scaled, 0x1p-9f) : 0;
      if constexpr (rounding == Rounding::stochastic) scaled = copysignf(round_to_e4m3(fabsf(scaled), random.of(i + j)), scaled);
      two[j] = scaled;
    }
    pairs[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(two[0], two[1]), __NV_SATFINITE, __NV_E4M3);
  }
  codes = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
__device__ __forceinline__ void from_codes(const uint2& codes, float scale, float (&x)[packet]) {
  const unsigned words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < packet; i += 2) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 4] >> (i % 4 * 8));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    x[i] = values.x * scale, x[i + 1] = values.y * scale;
  }
}

}  // namespace aisp::ch13
