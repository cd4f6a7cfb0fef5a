// SPDX-License-Identifier: Apache-2.0
// The products of wgmma with a sparse A of bf16 (sm_90a): of every four neighbours of a row along K two at most are not zero, and
// only two are stored, with two bits each for where they were. A product takes 32 of K in the time in which a dense one takes 16:
// 64 x 16 stored elements of A, 32 x N of B. PTX ISA, "wgmma.mma_async.sp"; for D, operands and order see wgmma.cuh.
//
// Metadata: of four neighbours the two indices, 0 to 3, the lower one first and in the lower two bits; they are never equal. Of a
// row, 16 elements along K are half a word, the first four lowest. Two threads of four that share rows of D hold those of a
// product: with the selector 0 threads 0 and 1, with 1 threads 2 and 3, the former K from 0 on and the latter from 16 on, each of
// its upper row in the lower half of the word and of the row eight further down in the upper half. The others' words are not
// read, so that a word of each thread is enough for two products.
#pragma once
#include <aisp/device/wgmma_products.cuh>

namespace aisp::device {

// An operand along K in rows of 64 bytes with the 64-byte swizzle: eight rows in 512 bytes aligned to 512, where the 16-byte
// chunk c of row r lies at c ^ r / 2 % 4. The next 32 bytes of K begin 32 bytes further on.
__device__ __forceinline__ std::uint64_t operand_of_64_bytes(const void* shared) {
  constexpr std::uint64_t swizzle_64 = std::uint64_t{2} << 62, group = 512 >> 4, chunk = 1;
  return swizzle_64 | group << 32 | chunk << 16 | (shared_address(shared) & 0x3FFFF) >> 4;
}

#if AISP_WGMMA

// All products with 8 x `groups` = n columns; i to i5 are the numbers of the operands after the sums. A lies along K.
#define AISP_SPARSE_WIDTH(groups, n, i, i1, i2, i3, i4, i5)                                                                   \
  template <int selector, Major b_major = Major::k>                                                                           \
  __device__ __forceinline__ void wgmma_sparse(float(&d)[4 * groups], std::uint64_t a, std::uint64_t b, unsigned metadata,    \
                                               bool add = true) {                                                             \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i ", 0;\nwgmma.mma_async.sp.sync.aligned.m64n" #n                  \
                 "k32.f32.bf16.bf16 {" AISP_NAMES_##groups "}, %" #i1 ", %" #i2 ", %" #i3 ", %" #i4 ", add, 1, 1, 0, %" #i5   \
                                                           ";\n}\n"                                                           \
                 : AISP_SUMS_##groups("+f")                                                                                   \
                 : "r"(static_cast<int>(add)), "l"(a), "l"(b), "r"(metadata), "n"(selector), "n"(static_cast<int>(b_major))); \
  }

AISP_SPARSE_WIDTH(1, 8, 4, 5, 6, 7, 8, 9)
AISP_SPARSE_WIDTH(2, 16, 8, 9, 10, 11, 12, 13)
AISP_SPARSE_WIDTH(3, 24, 12, 13, 14, 15, 16, 17)
AISP_SPARSE_WIDTH(4, 32, 16, 17, 18, 19, 20, 21)
AISP_SPARSE_WIDTH(5, 40, 20, 21, 22, 23, 24, 25)
AISP_SPARSE_WIDTH(6, 48, 24, 25, 26, 27, 28, 29)
AISP_SPARSE_WIDTH(7, 56, 28, 29, 30, 31, 32, 33)
AISP_SPARSE_WIDTH(8, 64, 32, 33, 34, 35, 36, 37)
AISP_SPARSE_WIDTH(9, 72, 36, 37, 38, 39, 40, 41)
AISP_SPARSE_WIDTH(10, 80, 40, 41, 42, 43, 44, 45)
AISP_SPARSE_WIDTH(11, 88, 44, 45, 46, 47, 48, 49)
AISP_SPARSE_WIDTH(12, 96, 48, 49, 50, 51, 52, 53)
AISP_SPARSE_WIDTH(13, 104, 52, 53, 54, 55, 56, 57)
AISP_SPARSE_WIDTH(14, 112, 56, 57, 58, 59, 60, 61)
AISP_SPARSE_WIDTH(15, 120, 60, 61, 62, 63, 64, 65)
AISP_SPARSE_WIDTH(16, 128, 64, 65, 66, 67, 68, 69)
AISP_SPARSE_WIDTH(17, 136, 68, 69, 70, 71, 72, 73)
AISP_SPARSE_WIDTH(18, 144, 72, 73, 74, 75, 76, 77)
AISP_SPARSE_WIDTH(19, 152, 76, 77, 78, 79, 80, 81)
AISP_SPARSE_WIDTH(20, 160, 80, 81, 82, 83, 84, 85)
AISP_SPARSE_WIDTH(21, 168, 84, 85, 86, 87, 88, 89)
AISP_SPARSE_WIDTH(22, 176, 88, 89, 90, 91, 92, 93)
AISP_SPARSE_WIDTH(23, 184, 92, 93, 94, 95, 96, 97)
AISP_SPARSE_WIDTH(24, 192, 96, 97, 98, 99, 100, 101)
AISP_SPARSE_WIDTH(25, 200, 100, 101, 102, 103, 104, 105)
AISP_SPARSE_WIDTH(26, 208, 104, 105, 106, 107, 108, 109)
AISP_SPARSE_WIDTH(27, 216, 108, 109, 110, 111, 112, 113)
AISP_SPARSE_WIDTH(28, 224, 112, 113, 114, 115, 116, 117)
AISP_SPARSE_WIDTH(29, 232, 116, 117, 118, 119, 120, 121)
AISP_SPARSE_WIDTH(30, 240, 120, 121, 122, 123, 124, 125)
AISP_SPARSE_WIDTH(31, 248, 124, 125, 126, 127, 128, 129)
AISP_SPARSE_WIDTH(32, 256, 128, 129, 130, 131, 132, 133)

#else

template <int selector, Major b_major = Major::k, int count>
__device__ __forceinline__ void wgmma_sparse(float (&)[count], std::uint64_t, std::uint64_t, unsigned, bool = true) {
  unsupported_architecture();
}

#endif

}  // namespace aisp::device
