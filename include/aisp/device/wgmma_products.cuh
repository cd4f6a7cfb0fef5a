// SPDX-License-Identifier: Apache-2.0
// The products of wgmma for every type of operands and every width that it has, with A from shared memory or from registers:
// wgmma<Operands, a_major, b_major>(d, a, b, add), where the size of D says how many columns B has. PTX ISA, "wgmma.mma_async".
#pragma once
#include <aisp/device/wgmma.cuh>

namespace aisp::device {

// The types of A and B. A product takes 32 bytes of each row: 16 elements of two bytes, 32 of one. Sums are fp32, and s32 of s8.
// Those of bf16 may be the bits of fp32 in a D of integers: where one D is first s32 and then fp32, it must be the same
// registers. Only two-byte operands may lie along M or N.
enum class Operands { bf16, f16, e4m3, e5m2, e4m3_e5m2, e5m2_e4m3, s8 };

#if AISP_WGMMA

// D as the text of an instruction names it, and as its operands: four sums for every 8 columns.
#define AISP_NAMES_1 "%0, %1, %2, %3"
#define AISP_NAMES_2 AISP_NAMES_1 ", %4, %5, %6, %7"
#define AISP_NAMES_3 AISP_NAMES_2 ", %8, %9, %10, %11"
#define AISP_NAMES_4 AISP_NAMES_3 ", %12, %13, %14, %15"
#define AISP_NAMES_5 AISP_NAMES_4 ", %16, %17, %18, %19"
#define AISP_NAMES_6 AISP_NAMES_5 ", %20, %21, %22, %23"
#define AISP_NAMES_7 AISP_NAMES_6 ", %24, %25, %26, %27"
#define AISP_NAMES_8 AISP_NAMES_7 ", %28, %29, %30, %31"
#define AISP_NAMES_9 AISP_NAMES_8 ", %32, %33, %34, %35"
#define AISP_NAMES_10 AISP_NAMES_9 ", %36, %37, %38, %39"
#define AISP_NAMES_11 AISP_NAMES_10 ", %40, %41, %42, %43"
#define AISP_NAMES_12 AISP_NAMES_11 ", %44, %45, %46, %47"
#define AISP_NAMES_13 AISP_NAMES_12 ", %48, %49, %50, %51"
#define AISP_NAMES_14 AISP_NAMES_13 ", %52, %53, %54, %55"
#define AISP_NAMES_15 AISP_NAMES_14 ", %56, %57, %58, %59"
#define AISP_NAMES_16 AISP_NAMES_15 ", %60, %61, %62, %63"
#define AISP_NAMES_17 AISP_NAMES_16 ", %64, %65, %66, %67"
#define AISP_NAMES_18 AISP_NAMES_17 ", %68, %69, %70, %71"
#define AISP_NAMES_19 AISP_NAMES_18 ", %72, %73, %74, %75"
#define AISP_NAMES_20 AISP_NAMES_19 ", %76, %77, %78, %79"
#define AISP_NAMES_21 AISP_NAMES_20 ", %80, %81, %82, %83"
#define AISP_NAMES_22 AISP_NAMES_21 ", %84, %85, %86, %87"
#define AISP_NAMES_23 AISP_NAMES_22 ", %88, %89, %90, %91"
#define AISP_NAMES_24 AISP_NAMES_23 ", %92, %93, %94, %95"
#define AISP_NAMES_25 AISP_NAMES_24 ", %96, %97, %98, %99"
#define AISP_NAMES_26 AISP_NAMES_25 ", %100, %101, %102, %103"
#define AISP_NAMES_27 AISP_NAMES_26 ", %104, %105, %106, %107"
#define AISP_NAMES_28 AISP_NAMES_27 ", %108, %109, %110, %111"
#define AISP_NAMES_29 AISP_NAMES_28 ", %112, %113, %114, %115"
#define AISP_NAMES_30 AISP_NAMES_29 ", %116, %117, %118, %119"
#define AISP_NAMES_31 AISP_NAMES_30 ", %120, %121, %122, %123"
#define AISP_NAMES_32 AISP_NAMES_31 ", %124, %125, %126, %127"
#define AISP_FOUR(kind, i) kind(d[4 * i]), kind(d[4 * i + 1]), kind(d[4 * i + 2]), kind(d[4 * i + 3])
#define AISP_SUMS_1(kind) AISP_FOUR(kind, 0)
#define AISP_SUMS_2(kind) AISP_SUMS_1(kind), AISP_FOUR(kind, 1)
#define AISP_SUMS_3(kind) AISP_SUMS_2(kind), AISP_FOUR(kind, 2)
#define AISP_SUMS_4(kind) AISP_SUMS_3(kind), AISP_FOUR(kind, 3)
#define AISP_SUMS_5(kind) AISP_SUMS_4(kind), AISP_FOUR(kind, 4)
#define AISP_SUMS_6(kind) AISP_SUMS_5(kind), AISP_FOUR(kind, 5)
#define AISP_SUMS_7(kind) AISP_SUMS_6(kind), AISP_FOUR(kind, 6)
#define AISP_SUMS_8(kind) AISP_SUMS_7(kind), AISP_FOUR(kind, 7)
#define AISP_SUMS_9(kind) AISP_SUMS_8(kind), AISP_FOUR(kind, 8)
#define AISP_SUMS_10(kind) AISP_SUMS_9(kind), AISP_FOUR(kind, 9)
#define AISP_SUMS_11(kind) AISP_SUMS_10(kind), AISP_FOUR(kind, 10)
#define AISP_SUMS_12(kind) AISP_SUMS_11(kind), AISP_FOUR(kind, 11)
#define AISP_SUMS_13(kind) AISP_SUMS_12(kind), AISP_FOUR(kind, 12)
#define AISP_SUMS_14(kind) AISP_SUMS_13(kind), AISP_FOUR(kind, 13)
#define AISP_SUMS_15(kind) AISP_SUMS_14(kind), AISP_FOUR(kind, 14)
#define AISP_SUMS_16(kind) AISP_SUMS_15(kind), AISP_FOUR(kind, 15)
#define AISP_SUMS_17(kind) AISP_SUMS_16(kind), AISP_FOUR(kind, 16)
#define AISP_SUMS_18(kind) AISP_SUMS_17(kind), AISP_FOUR(kind, 17)
#define AISP_SUMS_19(kind) AISP_SUMS_18(kind), AISP_FOUR(kind, 18)
#define AISP_SUMS_20(kind) AISP_SUMS_19(kind), AISP_FOUR(kind, 19)
#define AISP_SUMS_21(kind) AISP_SUMS_20(kind), AISP_FOUR(kind, 20)
#define AISP_SUMS_22(kind) AISP_SUMS_21(kind), AISP_FOUR(kind, 21)
#define AISP_SUMS_23(kind) AISP_SUMS_22(kind), AISP_FOUR(kind, 22)
#define AISP_SUMS_24(kind) AISP_SUMS_23(kind), AISP_FOUR(kind, 23)
#define AISP_SUMS_25(kind) AISP_SUMS_24(kind), AISP_FOUR(kind, 24)
#define AISP_SUMS_26(kind) AISP_SUMS_25(kind), AISP_FOUR(kind, 25)
#define AISP_SUMS_27(kind) AISP_SUMS_26(kind), AISP_FOUR(kind, 26)
#define AISP_SUMS_28(kind) AISP_SUMS_27(kind), AISP_FOUR(kind, 27)
#define AISP_SUMS_29(kind) AISP_SUMS_28(kind), AISP_FOUR(kind, 28)
#define AISP_SUMS_30(kind) AISP_SUMS_29(kind), AISP_FOUR(kind, 29)
#define AISP_SUMS_31(kind) AISP_SUMS_30(kind), AISP_FOUR(kind, 30)
#define AISP_SUMS_32(kind) AISP_SUMS_31(kind), AISP_FOUR(kind, 31)

// One instruction. `a` is its text for A; `rest` follows the predicate: signs of A and B, and for two-byte operands their majors.
#define AISP_PRODUCT(groups, shape, a_text, add_number, b_number, rest, sum, ...)                               \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_number ", 0;\nwgmma.mma_async.sync.aligned." shape \
               " {" AISP_NAMES_##groups "}, " a_text ", %" #b_number ", add" rest ";\n}\n"                      \
               : AISP_SUMS_##groups(sum)                                                                        \
               : "r"(static_cast<int>(add)), "l"(b), __VA_ARGS__)

// All products with 8 x `groups` = n columns; i to i6 are the numbers of the operands after the sums.
#define AISP_WIDTH(groups, n, i, i1, i2, i3, i4, i5, i6)                                                                      \
  template <Operands of, Major a_major = Major::k, Major b_major = Major::k>                                                  \
  __device__ __forceinline__ void wgmma(float(&d)[4 * groups], std::uint64_t a, std::uint64_t b, bool add = true) {           \
    constexpr int left = static_cast<int>(a_major), right = static_cast<int>(b_major);                                        \
    if constexpr (of == Operands::bf16)                                                                                       \
      AISP_PRODUCT(groups, "m64n" #n "k16.f32.bf16.bf16", "%" #i2, i, i1, ", 1, 1, %" #i3 ", %" #i4, "+f", "l"(a), "n"(left), \
                   "n"(right));                                                                                               \
    else if constexpr (of == Operands::f16)                                                                                   \
      AISP_PRODUCT(groups, "m64n" #n "k16.f32.f16.f16", "%" #i2, i, i1, ", 1, 1, %" #i3 ", %" #i4, "+f", "l"(a), "n"(left),   \
                   "n"(right));                                                                                               \
    else if constexpr (of == Operands::e4m3)                                                                                  \
      AISP_PRODUCT(groups, "m64n" #n "k32.f32.e4m3.e4m3", "%" #i2, i, i1, ", 1, 1", "+f", "l"(a));                            \
    else if constexpr (of == Operands::e5m2)                                                                                  \
      AISP_PRODUCT(groups, "m64n" #n "k32.f32.e5m2.e5m2", "%" #i2, i, i1, ", 1, 1", "+f", "l"(a));                            \
    else if constexpr (of == Operands::e4m3_e5m2)                                                                             \
      AISP_PRODUCT(groups, "m64n" #n "k32.f32.e4m3.e5m2", "%" #i2, i, i1, ", 1, 1", "+f", "l"(a));                            \
    else AISP_PRODUCT(groups, "m64n" #n "k32.f32.e5m2.e4m3", "%" #i2, i, i1, ", 1, 1", "+f", "l"(a));                         \
  }                                                                                                                           \
  template <Operands of, Major b_major = Major::k>                                                                            \
  __device__ __forceinline__ void wgmma(float(&d)[4 * groups], const unsigned(&a)[4], std::uint64_t b, bool add = true) {     \
    constexpr int right = static_cast<int>(b_major);                                                                          \
    if constexpr (of == Operands::bf16)                                                                                       \
      AISP_PRODUCT(groups, "m64n" #n "k16.f32.bf16.bf16", "{%" #i2 ", %" #i3 ", %" #i4 ", %" #i5 "}", i, i1, ", 1, 1, %" #i6, \
                   "+f", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "n"(right));                                             \
    else if constexpr (of == Operands::f16)                                                                                   \
      AISP_PRODUCT(groups, "m64n" #n "k16.f32.f16.f16", "{%" #i2 ", %" #i3 ", %" #i4 ", %" #i5 "}", i, i1, ", 1, 1, %" #i6,   \
                   "+f", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "n"(right));                                             \
    else if constexpr (of == Operands::e4m3)                                                                                  \
      AISP_PRODUCT(groups, "m64n" #n "k32.f32.e4m3.e4m3", "{%" #i2 ", %" #i3 ", %" #i4 ", %" #i5 "}", i, i1, ", 1, 1", "+f",  \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                               \
    else                                                                                                                      \
      AISP_PRODUCT(groups, "m64n" #n "k32.f32.e5m2.e5m2", "{%" #i2 ", %" #i3 ", %" #i4 ", %" #i5 "}", i, i1, ", 1, 1", "+f",  \
                   "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                               \
  }                                                                                                                           \
  template <Operands of, Major a_major = Major::k, Major b_major = Major::k>                                                  \
  __device__ __forceinline__ void wgmma(int(&d)[4 * groups], std::uint64_t a, std::uint64_t b, bool add = true) {             \
    constexpr int left = static_cast<int>(a_major), right = static_cast<int>(b_major);                                        \
    if constexpr (of == Operands::bf16)                                                                                       \
      AISP_PRODUCT(groups, "m64n" #n "k16.f32.bf16.bf16", "%" #i2, i, i1, ", 1, 1, %" #i3 ", %" #i4, "+r", "l"(a), "n"(left), \
                   "n"(right));                                                                                               \
    else {                                                                                                                    \
      static_assert(of == Operands::s8 && (n <= 32 || n % 16 == 0), "s8 has widths of 8, 16, 24, 32, 48, 64, 80, ...");       \
      AISP_PRODUCT(groups, "m64n" #n "k32.s32.s8.s8", "%" #i2, i, i1, "", "+r", "l"(a));                                      \
    }                                                                                                                         \
  }

AISP_WIDTH(1, 8, 4, 5, 6, 7, 8, 9, 10)
AISP_WIDTH(2, 16, 8, 9, 10, 11, 12, 13, 14)
AISP_WIDTH(3, 24, 12, 13, 14, 15, 16, 17, 18)
AISP_WIDTH(4, 32, 16, 17, 18, 19, 20, 21, 22)
AISP_WIDTH(5, 40, 20, 21, 22, 23, 24, 25, 26)
AISP_WIDTH(6, 48, 24, 25, 26, 27, 28, 29, 30)
AISP_WIDTH(7, 56, 28, 29, 30, 31, 32, 33, 34)
AISP_WIDTH(8, 64, 32, 33, 34, 35, 36, 37, 38)
AISP_WIDTH(9, 72, 36, 37, 38, 39, 40, 41, 42)
AISP_WIDTH(10, 80, 40, 41, 42, 43, 44, 45, 46)
AISP_WIDTH(11, 88, 44, 45, 46, 47, 48, 49, 50)
AISP_WIDTH(12, 96, 48, 49, 50, 51, 52, 53, 54)
AISP_WIDTH(13, 104, 52, 53, 54, 55, 56, 57, 58)
AISP_WIDTH(14, 112, 56, 57, 58, 59, 60, 61, 62)
AISP_WIDTH(15, 120, 60, 61, 62, 63, 64, 65, 66)
AISP_WIDTH(16, 128, 64, 65, 66, 67, 68, 69, 70)
AISP_WIDTH(17, 136, 68, 69, 70, 71, 72, 73, 74)
AISP_WIDTH(18, 144, 72, 73, 74, 75, 76, 77, 78)
AISP_WIDTH(19, 152, 76, 77, 78, 79, 80, 81, 82)
AISP_WIDTH(20, 160, 80, 81, 82, 83, 84, 85, 86)
AISP_WIDTH(21, 168, 84, 85, 86, 87, 88, 89, 90)
AISP_WIDTH(22, 176, 88, 89, 90, 91, 92, 93, 94)
AISP_WIDTH(23, 184, 92, 93, 94, 95, 96, 97, 98)
AISP_WIDTH(24, 192, 96, 97, 98, 99, 100, 101, 102)
AISP_WIDTH(25, 200, 100, 101, 102, 103, 104, 105, 106)
AISP_WIDTH(26, 208, 104, 105, 106, 107, 108, 109, 110)
AISP_WIDTH(27, 216, 108, 109, 110, 111, 112, 113, 114)
AISP_WIDTH(28, 224, 112, 113, 114, 115, 116, 117, 118)
AISP_WIDTH(29, 232, 116, 117, 118, 119, 120, 121, 122)
AISP_WIDTH(30, 240, 120, 121, 122, 123, 124, 125, 126)
AISP_WIDTH(31, 248, 124, 125, 126, 127, 128, 129, 130)
AISP_WIDTH(32, 256, 128, 129, 130, 131, 132, 133, 134)

#else

template <Operands of, Major a_major = Major::k, Major b_major = Major::k, class Sum, int count>
__device__ __forceinline__ void wgmma(Sum (&)[count], std::uint64_t, std::uint64_t, bool = true) {
  unsupported_architecture();
}
template <Operands of, Major b_major = Major::k, int count>
__device__ __forceinline__ void wgmma(float (&)[count], const unsigned (&)[4], std::uint64_t, bool = true) {
  unsupported_architecture();
}

#endif

}  // namespace aisp::device
