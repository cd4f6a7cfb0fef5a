// SPDX-License-Identifier: Apache-2.0
// The parts of CUDA's and the standard library's headers that device headers use, for NVRTC, which has none of them
// (headers.cpp).
#pragma once

namespace std {

using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long;
using uint64_t = unsigned long;
using intptr_t = long;
using uintptr_t = unsigned long;

template <class T>
struct type_identity {
  using type = T;
};
template <bool condition, class T, class U>
struct conditional : type_identity<T> {};
template <class T, class U>
struct conditional<false, T, U> : type_identity<U> {};
template <bool condition, class T, class U>
using conditional_t = typename conditional<condition, T, U>::type;
template <class T, class U>
inline constexpr bool is_same_v = false;
template <class T>
inline constexpr bool is_same_v<T, T> = true;
template <class T>
inline constexpr bool is_trivially_copyable_v = __is_trivially_copyable(T);

}  // namespace std

using std::int16_t, std::int32_t, std::int64_t, std::int8_t, std::intptr_t, std::ptrdiff_t, std::size_t, std::uint16_t,
    std::uint32_t, std::uint64_t, std::uint8_t, std::uintptr_t;

// From cuda.h: an argument of kernels that is only passed on.
struct alignas(128) CUtensorMap {
  uint64_t opaque[16];
};

// From cuda_fp16.h and cuda_fp8.h: the element types of buffers, conversions, and the arithmetic on two at a time that engines
// use.
struct alignas(2) __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
namespace standard {
__device__ inline unsigned bits_of(const __half2& x) { return reinterpret_cast<const unsigned&>(x); }
__device__ inline __half2 half2_of(unsigned bits) { return reinterpret_cast<const __half2&>(bits); }
}  // namespace standard
__device__ inline __half2 __floats2half2_rn(float x, float y) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return standard::half2_of(bits);
}
__device__ inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
__device__ inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
__device__ inline __half __int2half_rn(int x) {
  __half rounded;
  asm("cvt.rn.f16.s32 %0, %1;" : "=h"(rounded.bits) : "r"(x));
  return rounded;
}
__device__ inline float2 __half22float2(__half2 x) {
  float2 both;
  asm("cvt.f32.f16 %0, %1;" : "=f"(both.x) : "h"(x.x.bits));
  asm("cvt.f32.f16 %0, %1;" : "=f"(both.y) : "h"(x.y.bits));
  return both;
}
__device__ inline __half2 __hsub2(__half2 x, __half2 y) {
  unsigned difference;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(standard::bits_of(x)), "r"(standard::bits_of(y)));
  return standard::half2_of(difference);
}
__device__ inline __half2 __hmul2(__half2 x, __half2 y) {
  unsigned product;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(standard::bits_of(x)), "r"(standard::bits_of(y)));
  return standard::half2_of(product);
}
__device__ inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) {
  unsigned sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;"
      : "=r"(sum)
      : "r"(standard::bits_of(x)), "r"(standard::bits_of(y)), "r"(standard::bits_of(z)));
  return standard::half2_of(sum);
}
struct __nv_fp8_e4m3 {
  uint8_t bits;
};
struct __nv_fp8_e5m2 {
  uint8_t bits;
};

// From cuda_bf16.h: two bytes, and one or two of them rounded from fp32.
struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
__device__ inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  __nv_bfloat16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
}
__device__ inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
