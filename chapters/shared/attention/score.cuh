// SPDX-License-Identifier: Apache-2.0
// Changes of the product of a query and a key before the softmax. A score may add what it likes from where it stands; it gives
// exponents to base 2 when they are multiplied by exponent_scale(). A score whose head has begin() says what a product's sum
// begins with, from the distance of the thread's first key from the block's first row, and of the key from that one.
#pragma once
#include "softmax.cuh"

namespace aisp::attention {

// The place of a score. `distance` is that of the key from the row's own (0 with equal lengths on the diagonal, below 0 for
// earlier keys), as a number that costs no conversion.
struct At {
  int sequence, head, row, key;
  float distance;
};

// product * scale
struct Scaled {
  float scale_log2;  // scale * log2_e
  static constexpr bool changes = false;
  __device__ __forceinline__ float exponent_scale() const { return scale_log2; }
  __device__ __forceinline__ Scaled of_head(int, int) const { return *this; }
  __device__ __forceinline__ float operator()(float product, const At&) const { return product; }
};

// product * scale + slope of the head * distance
struct Alibi {
  float scale_log2;
  const float* slopes;
  static constexpr bool changes = true;
  struct OfHead {
    float scale_log2, slope_log2;
    __device__ __forceinline__ float operator()(float product, const At& at) const {
      return fmaf(product, scale_log2, slope_log2 * at.distance);
    }
  };
  __device__ __forceinline__ float exponent_scale() const { return 1; }
  __device__ __forceinline__ OfHead of_head(int, int head) const { return {scale_log2, slopes[head] * log2_e}; }
};

// The same without anything to do for a score: sums of products begin with its bias. That is relative to the first row of the
// block instead of the score's own, which cancels in the softmax; log-sum-exps would lack the difference.
struct AlibiFirst {
  float scale_log2;
  const float* slopes;
  static constexpr bool changes = false;
  struct OfHead {
    float slope;  // as products are scaled
    __device__ __forceinline__ float begin(float distance, float further) const { return fmaf(slope, further, slope * distance); }
  };
  __device__ __forceinline__ float exponent_scale() const { return scale_log2; }
  __device__ __forceinline__ OfHead of_head(int, int head) const { return {slopes[head] * (log2_e / scale_log2)}; }
};

// cap * tanh(product * scale / cap)
struct Softcap {
  float scale_by_cap, cap_log2;  // scale / cap, and cap * log2_e
  static constexpr bool changes = true;
  __device__ __forceinline__ float exponent_scale() const { return cap_log2; }
  __device__ __forceinline__ Softcap of_head(int, int) const { return *this; }
  // tanh(x) = 1 - 2 / (exp(2 x) + 1), which saturates without NaN; tanh.approx has 10 bits, too few for a cap of 50.
  __device__ __forceinline__ float operator()(float product, const At&) const {
    return 1 - __fdividef(2, device::exp2_approximate(product * (2 * log2_e * scale_by_cap)) + 1);
  }
};

}  // namespace aisp::attention
