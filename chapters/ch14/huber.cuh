// SPDX-License-Identifier: Apache-2.0
// A user's function: Huber's loss of one pair of values. Compiled by nvcc, and at run time by NVRTC. No multiply and add can be
// contracted, so that it gives the same bits wherever it is inlined.
#pragma once

namespace aisp::ch14 {

inline constexpr float huber_delta = 1;

__device__ __forceinline__ float huber(float prediction, float target) {
  const float error = fabsf(__fsub_rn(prediction, target));
  if (error <= huber_delta) return __fmul_rn(__fmul_rn(0.5f, error), error);
  return __fmul_rn(huber_delta, __fsub_rn(error, 0.5f * huber_delta));
}

}  // namespace aisp::ch14
