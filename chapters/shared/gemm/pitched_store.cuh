// SPDX-License-Identifier: Apache-2.0
// Predicated rows, as RowsStore writes them, into a matrix that is wider than the product.
#pragma once
#include "store.cuh"

namespace aisp::gemm {

// A store of bf16; tiles are multiples of 32 columns.
struct PitchedRowsStore {
  using Element = bf16;
  static constexpr bool predicated = true, any_width = false;
  template <int columns>
  static constexpr int box_columns = 0;
  template <int columns>
  static constexpr unsigned staging_bytes = 0;

  Element* c = nullptr;
  int pitch = 0;

  template <int count>
  __device__ __forceinline__ void put(const float (&sums)[count], const Fragment& at, unsigned char*, const CUtensorMap&) const {
    static_assert(count % 16 == 0, "four lanes store 32 columns");
    const int first = at.first_column + static_cast<int>(device::lane_index()) % 4 * 8;
#pragma unroll
    for (int lower = 0; lower <= 2; lower += 2) {
      const int row = at.row(lower);
      Element* const to = c + static_cast<std::size_t>(row) * pitch;
#pragma unroll
      for (int i = 0; i < count; i += 16) {
        const uint4 v = detail::row_of_quad<Element>(sums + i, lower);
        const int column = first + i * 2;
        if (row < at.row_end && column < at.column_end) *reinterpret_cast<uint4*>(to + column) = v;
      }
    }
  }
  static __device__ __forceinline__ void finish() {}
};

}  // namespace aisp::gemm
