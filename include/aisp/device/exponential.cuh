// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::device {

// ex2.approx.ftz: one instruction of the special-function units. 2^x within 2 units of the last place; 0 below -126.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace aisp::device
