// SPDX-License-Identifier: Apache-2.0
// Loads and stores of up to 16 bytes a thread, and what they tell the caches.
#pragma once
#include <aisp/device/arch.cuh>

#include <type_traits>

namespace aisp::device {

// N values that are loaded and stored by one instruction. Pointers to it must be aligned to its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  static_assert(sizeof(T) * N <= 16 && (sizeof(T) * N & (sizeof(T) * N - 1)) == 0, "one access moves 1, 2, 4, 8 or 16 bytes");
  T values[N];

  __host__ __device__ __forceinline__ T& operator[](int i) { return values[i]; }
  __host__ __device__ __forceinline__ const T& operator[](int i) const { return values[i]; }
  __host__ __device__ static constexpr int size() { return N; }
};

// As many T as fit into 16 bytes: Vector16<float> holds 4, Vector16<__nv_bfloat16> holds 8.
template <class T>
using Vector16 = Vector<T, static_cast<int>(16 / sizeof(T))>;

namespace detail {

template <class T>
constexpr bool movable = std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) &&
                         alignof(T) == sizeof(T);

template <class To, class From>
__device__ __forceinline__ To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace detail

// ld.global.nc: through the read-only path. The location must not be written while the kernel runs.
template <class T>
__device__ __forceinline__ T load_read_only(const T* from) {
  static_assert(detail::movable<T>, "4, 8 or 16 bytes, aligned to their size");
  if constexpr (sizeof(T) == 16) {
    uint4 bits;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  } else if constexpr (sizeof(T) == 8) {
    uint2 bits;
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(bits.x), "=r"(bits.y) : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  } else {
    unsigned bits;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  }
}

// ld.global.nc.L1::no_allocate: for data that is read once and must not evict other data; it leaves no line in L1. Not for plain
// streams: if L2 is full, an H200 reads and writes 8 % slower with it than with plain loads. Read-only as above.
template <class T>
__device__ __forceinline__ T load_once(const T* from) {
  static_assert(detail::movable<T>, "4, 8 or 16 bytes, aligned to their size");
  if constexpr (sizeof(T) == 16) {
    uint4 bits;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
        : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  } else if constexpr (sizeof(T) == 8) {
    uint2 bits;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(bits.x), "=r"(bits.y) : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  } else {
    unsigned bits;
    asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(bits) : "l"(global_address(from)));
    return detail::same_bits<T>(bits);
  }
}

// st.global.cs: streaming; the line is the first to be evicted from L2.
template <class T>
__device__ __forceinline__ void store_streaming(T* to, const T& value) {
  static_assert(detail::movable<T>, "4, 8 or 16 bytes, aligned to their size");
  if constexpr (sizeof(T) == 16) {
    const uint4 bits = detail::same_bits<uint4>(value);
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                 "r"(bits.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const uint2 bits = detail::same_bits<uint2>(value);
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(global_address(to)), "r"(bits.x), "r"(bits.y) : "memory");
  } else {
    const unsigned bits = detail::same_bits<unsigned>(value);
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(global_address(to)), "r"(bits) : "memory");
  }
}

// red.global.add.f32, of four neighbours: adds to the values there, in L2, and returns nothing. One instruction on sm_90, four on
// earlier chips, where a warp's addresses are 16 bytes apart.
__device__ __forceinline__ void add_to_global(float* to, float x0, float x1, float x2, float x3) {
#if AISP_SM >= 90
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global_address(to)), "f"(x0), "f"(x1), "f"(x2), "f"(x3)
               : "memory");
#else
  const float x[4] = {x0, x1, x2, x3};
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global_address(to + i)), "f"(x[i]) : "memory");
#endif
}

// prefetch.global.L2: brings the line of `address` into L2 without waiting.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global_address(address)));
}

}  // namespace aisp::device
