// SPDX-License-Identifier: Apache-2.0
// Softmax kept online while keys go by, on the fragments that wgmma leaves in a thread's registers (aisp/device/wgmma.cuh).
// Scores may be -inf, even all of a row: what a mask hides counts nothing, and a row that saw nothing has the sum 0 and the
// maximum -inf.
#pragma once
#include <aisp/device/exponential.cuh>
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

namespace aisp::attention {

using bf16 = __nv_bfloat16;

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.69314718055994531f;
constexpr float infinity = __builtin_bit_cast(float, 0x7F800000);

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(reinterpret_cast<const unsigned short&>(x)) << 16);
}

// A thread's state of the two rows of a fragment that it has elements of: the rows l / 4 and l / 4 + 8. The maximum is the row's,
// the sum is of the thread's own elements.
struct Rows {
  float maximum[2] = {-infinity, -infinity}, sum[2] = {0, 0};
};

// Returns the level that exponents are relative to: the maximum, or for a row that has seen nothing, 0: -inf less -inf is no
// number.
__device__ __forceinline__ float base_of(float maximum) { return maximum == -infinity ? 0 : maximum; }

template <int count>
__device__ __forceinline__ void row_maxima(const float (&scores)[count], float (&maximum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest[2] = {scores[2 * half], scores[2 * half + 1]};
#pragma unroll
    for (int j = 4; j < count; j += 4) {
      highest[0] = fmaxf(highest[0], scores[j + 2 * half]);
      highest[1] = fmaxf(highest[1], scores[j + 2 * half + 1]);
    }
    maximum[half] = fmaxf(highest[0], highest[1]);
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 1));
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(~0u, maximum[half], 2));
  }
}

// `factor` is what earlier results must be multiplied by, because the maximum has grown.
__device__ __forceinline__ void raise(Rows& rows, const float (&maximum)[2], float scale, float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = fmaxf(rows.maximum[half], maximum[half]);
    factor[half] = device::exp2_approximate((rows.maximum[half] - base_of(raised)) * scale);
    rows.maximum[half] = raised;
    rows.sum[half] *= factor[half];
  }
}

template <int count>
__device__ __forceinline__ void exponentials(float (&scores)[count], Rows& rows, float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float offset = base_of(rows.maximum[half]) * scale;
#pragma unroll
    for (int j = 2 * half; j < count; j += 4)
#pragma unroll
      for (int i = j; i < j + 2; ++i) {
        scores[i] = device::exp2_approximate(fmaf(scores[i], scale, -offset));
        rows.sum[half] += scores[i];
      }
  }
}

// Turns the scores of these rows into their exponentials to base 2; `scale` is what a score must be multiplied by to be an
// exponent. A maximum may be outgrown by up to 2^8 before anything is rescaled: what exponentials are taken relative to cancels
// in the end, and neither fp32 nor bf16 loses bits by it. True if there is something to rescale.
template <int count>
__device__ __forceinline__ bool online_softmax(float (&scores)[count], Rows& rows, float scale, float (&factor)[2]) {
  constexpr float slack = 8;
  float maximum[2];
  row_maxima(scores, maximum);
  const bool outgrown =
      __any_sync(~0u, (maximum[0] - rows.maximum[0]) * scale > slack || (maximum[1] - rows.maximum[1]) * scale > slack);
  if (outgrown) raise(rows, maximum, scale, factor);
  exponentials(scores, rows, scale);
  return outgrown;
}

template <int count>
__device__ __forceinline__ void rescale(float (&rows)[count], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < count; ++i) rows[i] *= factor[i / 2 % 2];
}

// Sums over all of a row's keys; afterwards every thread of the row has them.
__device__ __forceinline__ void whole_sums(Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.sum[half] += __shfl_xor_sync(~0u, rows.sum[half], 1);
    rows.sum[half] += __shfl_xor_sync(~0u, rows.sum[half], 2);
  }
}

// Returns the factor of a finished row; one that saw nothing stays 0.
__device__ __forceinline__ float reciprocal(float sum) { return sum == 0 ? 0 : 1 / sum; }

// The natural logarithm of the sum of exponentials; of a row that saw nothing -inf.
__device__ __forceinline__ float log_sum_exp(float maximum, float sum, float scale) {
  return sum == 0 ? -infinity : maximum * scale * ln_2 + logf(sum);
}

// Rows of 16 columns as a left operand: the layout of the result of a product, narrowed.
template <int count>
__device__ __forceinline__ void narrow(unsigned (&operand)[4], const float (&rows)[count], int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) operand[i] = device::narrow_bf16(rows[8 * step + 2 * i], rows[8 * step + 2 * i + 1]);
}

}  // namespace aisp::attention
