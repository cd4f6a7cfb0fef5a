// SPDX-License-Identifier: Apache-2.0
// NVFP4 as wgmma wants it: E2M1 codes in the order of the fragments of its A, which shifts, masks and a product with the scale of
// 16 weights expand to bf16 in registers. E2M1's bits, two of exponent and one of mantissa, are those of a bf16 that is 2^126
// times too small, subnormals of both included.
#pragma once
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

namespace aisp::ch19::nvfp4 {

constexpr unsigned group = 16;  // weights with one scale
// Of what is missing, the factor of a scale of 448 leaves so much room; the rest is the sums'.
constexpr float too_small = 0x1p126f, room = 0x1p118f;

__device__ __forceinline__ unsigned scaled(unsigned pair, __nv_bfloat162 scale) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair), scale);
  return reinterpret_cast<const unsigned&>(product);
}
// 64 rows by 64 along K as the threads of a warpgroup want them, who each have 16 bytes of codes for four products.
// A word is for one product: pair j goes where A's register j has it, of the thread's upper row for an even j, by shifts that
// leave gaps for one another. Scales are bf16, times `room`: with eight bits more for 16 weights none has to be expanded.
struct Codes {
  using Factor = __nv_bfloat16;
  static constexpr bool in_registers = true;
  static constexpr int codes_bytes = 64 * 64 / 2, block_bytes = codes_bytes + 64 * 64 / static_cast<int>(group) * 2;
  // Return the bits of pair j in the lower half of a word; bf16 wants them at 6 and 15.
  static __host__ __device__ constexpr unsigned magnitude_at(unsigned j) { return j == 3 ? 9 : 6 - 3 * j; }
  static __host__ __device__ constexpr unsigned sign_at(unsigned j) { return j == 0 ? 15 : 11 + j; }

  static __host__ __device__ constexpr unsigned pack(unsigned code, unsigned j, unsigned upper_half) {
    return ((code & 7) << magnitude_at(j) | (code >> 3 & 1) << sign_at(j)) << 16 * upper_half;
  }
  // E4M3's value times `room`.
  static __host__ __device__ constexpr unsigned pack_scale(unsigned e4m3_bits) {
    int exponent = static_cast<int>(e4m3_bits >> 3 & 15) - 7;
    unsigned significand = (e4m3_bits & 7) + (exponent == -7 ? 0 : 8);
    if (exponent == -7) ++exponent;
    if (significand == 0) return 0;
    for (; significand < 8; significand *= 2) --exponent;
    return static_cast<unsigned>(127 + 118 + exponent) << 7 | (significand & 7) << 4;
  }

  template <unsigned j>
  static __device__ __forceinline__ unsigned pair(unsigned word) {
    constexpr unsigned at = magnitude_at(j), left_by = at < 6 ? 6 - at : 0, right_by = at > 6 ? at - 6 : 0;
    return (word << left_by >> right_by & 0x01C001C0) | (word << (15 - sign_at(j)) & 0x80008000);
  }
  struct Words {
    unsigned codes[4], scales[4];  // of four steps, scales of two rows each
  };
  __device__ __forceinline__ Words load(const std::uint8_t* block) const {
    const unsigned thread = threadIdx.x % 128;
    const uint4 codes = *reinterpret_cast<const uint4*>(block + thread * 16);
    const uint4 scales = *reinterpret_cast<const uint4*>(block + codes_bytes + thread / 4 * 16);
    return {{codes.x, codes.y, codes.z, codes.w}, {scales.x, scales.y, scales.z, scales.w}};
  }
  __device__ __forceinline__ void expand(const Words& words, int step, unsigned (&a)[4]) const {
    const __nv_bfloat162 scales = reinterpret_cast<const __nv_bfloat162&>(words.scales[step]);
    const __nv_bfloat162 upper = __low2bfloat162(scales), lower = __high2bfloat162(scales);
    const unsigned word = words.codes[step];
    a[0] = scaled(pair<0>(word), upper);
    a[1] = scaled(pair<1>(word), lower);
    a[2] = scaled(pair<2>(word), upper);
    a[3] = scaled(pair<3>(word), lower);
  }
};

// Once, when a model is loaded. A block has 64 rows by 64 along K; rows that do not exist are zeros.
static __global__ __launch_bounds__(128) void pack_kernel(const unsigned char* codes, const unsigned char* scales,
                                                          std::uint8_t* packed, unsigned rows, unsigned k) {
  const unsigned lane = threadIdx.x % 32, row = blockIdx.y * 64 + threadIdx.x / 32 * 16 + lane / 4, first = blockIdx.x * 64;
  std::uint8_t* const block = packed + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * Codes::block_bytes;
  const auto scale_of = [&](unsigned r, unsigned column) {
    return r < rows ? Codes::pack_scale(scales[(std::size_t{r} * k + column) / group]) : 0u;
  };
  for (unsigned step = 0; step < 4; ++step) {
    unsigned word = 0;
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned j = i / 2, r = row + j % 2 * 8, column = first + step * 16 + j / 2 * 8 + lane % 4 * 2 + i % 2;
      if (scale_of(r, column) == 0) continue;
      word |= Codes::pack(codes[(std::size_t{r} * k + column) / 2] >> column % 2 * 4 & 15, j, i % 2);
    }
    reinterpret_cast<unsigned*>(block)[threadIdx.x * 4 + step] = word;
    if (lane % 4 < 2)
      reinterpret_cast<std::uint16_t*>(block + Codes::codes_bytes)[threadIdx.x / 4 * 8 + step * 2 + lane % 4] =
          static_cast<std::uint16_t>(scale_of(row + lane % 4 * 8, first + step * 16));
  }
}

}  // namespace aisp::ch19::nvfp4
