// SPDX-License-Identifier: Apache-2.0
// The two factors of a product, and the layout of their tiles in shared memory: always in rows of 128 bytes with the 128-byte
// swizzle, 128 bytes of K deep. Device headers of this folder include nothing of the host's, so that NVRTC takes them.
#pragma once
#include <cuda_fp16.h>
#include <aisp/device/tma.cuh>
#include <aisp/device/wgmma_products.cuh>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace aisp::gemm {

using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;
using device::Major;

// Operand A or B of C[m][n] = sum over k of A(m, k) B(k, n). Major::k: neighbours in memory are neighbours along K (A[m][k],
// B[n][k]); Major::mn: along M or N (A[k][m], B[k][n]), which only two-byte elements can.
template <class Element_, Major major_ = Major::k>
struct Operand {
  using Element = Element_;
  using Factor = Element;  // what wgmma multiplies
  static constexpr Major major = major_;
  static constexpr bool packed = false;  // packed.cuh has others
  static constexpr int tile_k = 128 / sizeof(Element);
  // Sizes for a tile with `extent` rows of M or N: its part of a stage, and how much of that is loaded.
  template <int extent>
  static constexpr int tile_elements = extent* tile_k;
  template <int extent>
  static constexpr unsigned tile_bytes = extent * 128;
  static_assert(major == Major::k || sizeof(Element) == 2, "one-byte operands lie along K");

  // Fills `tile` with `extent` rows of M or N from `first` on, at `k`; `blocks`: 0, or the blocks of the cluster that get it.
  template <int extent>
  static __device__ __forceinline__ void load(Element* tile, const CUtensorMap* map, int first, int k, std::uint64_t* full,
                                              std::uint16_t blocks = 0) {
    if constexpr (major == Major::k) {
      if (blocks == 0) device::tensor_load_2d(tile, map, k, first, full);
      else device::tensor_load_2d_multicast(tile, map, k, first, full, blocks);
    } else {
      static_assert(extent % 64 == 0, "tiles of operands along M or N are multiples of 64");
      if (blocks == 0) device::tensor_load_3d(tile, map, 0, k, first / 64, full);
      else device::tensor_load_3d_multicast(tile, map, 0, k, first / 64, full, blocks);
    }
  }

  // Return wgmma's descriptor of the rows from `first` on, and the distance to the next of the four products of a tile.
  static __device__ __forceinline__ std::uint64_t descriptor(const Element* tile, int first) {
    const Element* const from = tile + first * tile_k;
    if constexpr (major == Major::k) return device::operand(from);
    else return device::operand(from, 1024, tile_k * 128);
  }
  static constexpr unsigned step_bytes = major == Major::k ? 32 : 16 * 128;
};

// Along K, in panels of 128 bytes of K: [k / tile_k][m][tile_k]. What a stage loads of it is one piece of memory.
template <class Element_>
struct Panels : Operand<Element_> {
  using Element = Element_;
  template <int extent>
  static __device__ __forceinline__ void load(Element* tile, const CUtensorMap* map, int first, int k, std::uint64_t* full,
                                              std::uint16_t blocks = 0) {
    const int panel = k / Operand<Element>::tile_k;
    if (blocks == 0) device::tensor_load_3d(tile, map, 0, first, panel, full);
    else device::tensor_load_3d_multicast(tile, map, 0, first, panel, full, blocks);
  }
};
template <class Operand>
constexpr bool in_panels = false;
template <class Element>
constexpr bool in_panels<Panels<Element>> = true;

// The types that wgmma multiplies with each other.
template <class A, class B>
struct Product;
template <>
struct Product<bf16, bf16> {
  static constexpr auto operands = device::Operands::bf16;
};
template <>
struct Product<__half, __half> {
  static constexpr auto operands = device::Operands::f16;
};
template <>
struct Product<e4m3, e4m3> {
  static constexpr auto operands = device::Operands::e4m3;
};
template <>
struct Product<e5m2, e5m2> {
  static constexpr auto operands = device::Operands::e5m2;
};
template <>
struct Product<e4m3, e5m2> {
  static constexpr auto operands = device::Operands::e4m3_e5m2;
};
template <>
struct Product<e5m2, e4m3> {
  static constexpr auto operands = device::Operands::e5m2_e4m3;
};
template <>
struct Product<std::int8_t, std::int8_t> {
  static constexpr auto operands = device::Operands::s8;
};

}  // namespace aisp::gemm
