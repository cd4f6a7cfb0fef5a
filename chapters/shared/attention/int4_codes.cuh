// SPDX-License-Identifier: Apache-2.0
// INT4 codes from -7 to 7, eight in a word, and ways to make f16 of them: of a word always the pairs of codes (k, k + 4), for k
// from 0 to 3, which is what one shift of the word leaves in the same place of both halves.
#pragma once
#include <cuda_fp16.h>

namespace aisp::attention {

constexpr int int4_group = 32;  // tokens that a channel of the keys has a scale for
// Where a head's channel has its scale: next to the one that it makes a pair with.
__host__ __device__ constexpr int int4_scale_place(int d) { return d / 8 * 8 + d % 4 * 2 + d / 4 % 2; }
// And where a token's values have theirs: next to those of the tokens 8, 16 and 24 further on.
__host__ __device__ constexpr int int4_token_place(int token) { return token / 32 * 32 + token % 8 * 4 + token / 8 % 4; }

// Code + 8, code k in bits 4 k and up.
struct OffsetCodes {
  static constexpr float unit = 1;  // of what Expand makes of a code 1
  __device__ __forceinline__ static unsigned bits(int code, int k) { return static_cast<unsigned>(code + 8) << 4 * k; }
  __device__ __forceinline__ static unsigned mask(int k) { return 15u << 4 * k; }
};
// As one writes it down: shift, mask, subtract, convert.
struct ShiftedCodes : OffsetCodes {
  __device__ __forceinline__ static void of(unsigned word, unsigned (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int low = static_cast<int>(word >> 4 * k & 15) - 8, high = static_cast<int>(word >> (4 * k + 16) & 15) - 8;
      const __half2 pair = __halves2half2(__int2half_rn(low), __int2half_rn(high));
      pairs[k] = reinterpret_cast<const unsigned&>(pair);
    }
  }
};
// As the last bits of the f16 number 1024, or 16 times as many: one lop3 and one subtraction or multiply-add for two codes.
struct SplicedCodes : OffsetCodes {
  __device__ __forceinline__ static void of(unsigned word, unsigned (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      unsigned number;  // (word & mask) | 1024s; of two constants the compiler makes two instructions
      asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
          : "=r"(number)
          : "r"(k < 2 ? word : word >> 8), "r"(k % 2 == 0 ? 0x000F000F : 0x00F000F0), "r"(0x64006400));
      const __half2 spliced = reinterpret_cast<const __half2&>(number);
      const __half2 pair = k % 2 == 0 ? __hsub2(spliced, __float2half2_rn(1032))
                                      : __hfma2(spliced, __float2half2_rn(1.0f / 16), __float2half2_rn(-72));
      pairs[k] = reinterpret_cast<const unsigned&>(pair);
    }
  }
};
// Sign and magnitude, where a rotation brings them to the sign and the last bits of an f16: subnormal numbers, which need no
// arithmetic at all. The sign of code k lies under its magnitude, in the word's other half: rotated, it is 15 bits above.
struct SubnormalCodes {
  static constexpr float unit = 16777216;  // 2^24
  __device__ __forceinline__ static unsigned bits(int code, int k) {
    return static_cast<unsigned>(code < 0 ? -code : code) << 4 * k | (code < 0 ? 1u << (4 * k + 15) % 32 : 0);
  }
  __device__ __forceinline__ static unsigned mask(int k) { return 7u << 4 * k | 1u << (4 * k + 15) % 32; }
  __device__ __forceinline__ static void of(unsigned word, unsigned (&pairs)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) pairs[k] = __funnelshift_r(word, word, 4 * k) & 0x80078007u;
  }
};

}  // namespace aisp::attention
