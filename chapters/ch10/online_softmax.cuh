// SPDX-License-Identifier: Apache-2.0
// The arithmetic of attention's softmax, kept online while keys go by, and the order in which blocks of rows are taken. Heads of
// 128 columns lie one after the other, each with `length` rows, a multiple of 128.
#pragma once
#include <aisp/device/exponential.cuh>
#include <aisp/device/matrix.cuh>

#include <cuda_bf16.h>

#include <cmath>

namespace aisp::ch10::attention {

using bf16 = __nv_bfloat16;
constexpr int head_size = 128;  // columns
// Exponents are taken to base 2; a score is a product of two rows over sqrt(head_size).
constexpr float score_scale = 0.088388347648318440f * 1.4426950408889634f;

// A thread's state of the two rows of a fragment that it has elements of: the rows l / 4 and l / 4 + 8. The maximum is the row's,
// the sum is of the thread's own elements.
struct Rows {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

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
__device__ __forceinline__ void raise(Rows& rows, const float (&maximum)[2], float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = fmaxf(rows.maximum[half], maximum[half]);
    factor[half] = device::exp2_approximate((rows.maximum[half] - raised) * score_scale);
    rows.maximum[half] = raised;
    rows.sum[half] *= factor[half];
  }
}

template <int count>
__device__ __forceinline__ void exponentials(float (&scores)[count], Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float offset = rows.maximum[half] * score_scale;
#pragma unroll
    for (int j = 2 * half; j < count; j += 4)
#pragma unroll
      for (int i = j; i < j + 2; ++i) {
        scores[i] = device::exp2_approximate(fmaf(scores[i], score_scale, -offset));
        rows.sum[half] += scores[i];
      }
  }
}

// Turns the scores of these rows into their exponentials.
template <int count>
__device__ __forceinline__ void online_softmax(float (&scores)[count], Rows& rows, float (&factor)[2]) {
  float maximum[2];
  row_maxima(scores, maximum);
  raise(rows, maximum, factor);
  exponentials(scores, rows);
}

// The same, but the maximum may be outgrown by up to 2^8 before anything is rescaled: what exponentials are taken relative to
// cancels in the end, and neither fp32 nor bf16 loses bits by it. True if there is something to rescale.
template <int count>
__device__ __forceinline__ bool online_softmax_deferred(float (&scores)[count], Rows& rows, float (&factor)[2]) {
  constexpr float slack = 8 / score_scale;
  float maximum[2];
  row_maxima(scores, maximum);
  const bool outgrown = __any_sync(~0u, maximum[0] > rows.maximum[0] + slack || maximum[1] > rows.maximum[1] + slack);
  if (outgrown) raise(rows, maximum, factor);
  exponentials(scores, rows);
  return outgrown;
}

template <int count>
__device__ __forceinline__ void rescale(float (&rows)[count], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < count; ++i) rows[i] *= factor[i / 2 % 2];
}

// Computes the factors of the finished rows.
__device__ __forceinline__ void reciprocals(const Rows& rows, float (&factor)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factor[half] = 1 / sum;
  }
}

// Rows of 16 columns as a left operand: the layout of the result of a product, narrowed.
template <int count>
__device__ __forceinline__ void narrow(unsigned (&operand)[4], const float (&rows)[count], int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) operand[i] = device::narrow_bf16(rows[8 * step + 2 * i], rows[8 * step + 2 * i + 1]);
}

// Hides keys after a row's own, where `row` (of this thread's first) and the columns count from the same key.
template <int count>
__device__ __forceinline__ void hide_later_keys(float (&scores)[count], int row) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (i / 4 * 8 + column + i % 2 > row + i / 2 % 2 * 8) scores[i] = -INFINITY;
}

// The order of blocks of 128 rows. Without a mask one head after the other: blocks that run together read the same keys. With a
// causal mask a block has more keys the later it stands in its head, and what is begun last should be short: the longest first.
// But not of all heads: a head's next block would come when L2 has long lost its keys, and each would be read from memory by
// every block. So it is the longest of the next few heads, which have 16 MiB of keys and values together.
__device__ __forceinline__ int block_in_order(bool causal, int turn, int blocks, int of_a_head) {
  if (!causal) return turn;
  constexpr int in_l2 = 256;  // times 128 rows of K and of V
  const int together = max(in_l2 / of_a_head, 1) * of_a_head, first = turn / together * together;
  const int heads = min(together, blocks - first) / of_a_head, longer = (turn - first) / heads;
  return first + (turn - first) % heads * of_a_head + of_a_head - 1 - longer;
}

}  // namespace aisp::ch10::attention
