// SPDX-License-Identifier: Apache-2.0
// GELU in the epilogue of a product, for results that become FP8.
#pragma once
#include <aisp/device/exponential.cuh>

#include "gemm/epilogue.cuh"
#include "rows.cuh"

namespace aisp::ch19 {

// Exact where tanh.approx has lost all bits of 1 + tanh: a code has to be right in the tail, too.
struct SigmoidGelu {
  static constexpr int narrowing = 1;
  static __device__ __forceinline__ float of(float x) {
    constexpr float factor = -1.5957691216f * shared::log2_e, cubic = 0.044715f;
    float sigmoid;  // of a denominator that is at least 1, and 0 where the exponential overflows
    asm("rcp.approx.ftz.f32 %0, %1;"
        : "=f"(sigmoid)
        : "f"(1 + device::exp2_approximate(x * fmaf(x * x, factor * cubic, factor))));
    return x * sigmoid;
  }
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&) const {
#pragma unroll
    for (float& sum : sums) sum = of(sum);
  }
};

// GELU of alpha times the sums, times a scale; and the largest magnitude before it. Two results share a reciprocal, since special
// functions take longer than all the rest where nothing hides an epilogue. Denominators end at 2^60, so that their product is
// finite.
template <bool with_amax>
struct QuantizedGelu {
  static constexpr int narrowing = 1;
  float alpha = 1;
  const float* scale = nullptr;
  float* amax = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&) const {
    constexpr float factor = -1.5957691216f * shared::log2_e, cubic = 0.044715f, most = 60;
    const float by = alpha * *scale, linear = factor * alpha, third = factor * cubic * alpha * alpha * alpha;
    const float known = with_amax ? __uint_as_float(*reinterpret_cast<volatile unsigned*>(amax)) : 0;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      const float a = sums[i], b = sums[i + 1];
      const float of_a = 1 + device::exp2_approximate(fminf(a * fmaf(a * a, third, linear), most));
      const float of_b = 1 + device::exp2_approximate(fminf(b * fmaf(b * b, third, linear), most));
      float both;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(both) : "f"(of_a * of_b));
      both *= by;
      sums[i] = a * (of_b * both);
      sums[i + 1] = b * (of_a * both);
      if constexpr (with_amax) largest = fmaxf(largest, fmaxf(fabsf(sums[i]), fabsf(sums[i + 1])));
    }
    if constexpr (with_amax) {
      const unsigned of_warp = __reduce_max_sync(~0u, __float_as_uint(__fdividef(largest, *scale)));
      if (of_warp > __float_as_uint(known) && device::lane_index() == 0) atomicMax(reinterpret_cast<unsigned*>(amax), of_warp);
    }
  }
};

}  // namespace aisp::ch19
