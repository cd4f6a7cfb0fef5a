// SPDX-License-Identifier: Apache-2.0
// Epilogues that add another matrix of C's shape, a residual. Loads come first, all of them, at places that are kept inside.
#pragma once
#include "exchange.cuh"

namespace aisp::gemm {

// With the store TmaExchange, and `.other` in the problem: TMA brings the matrix while the tile is being multiplied.
struct AddOther {
  static constexpr int narrowing = 1;
  template <int columns>
  using Kept = Nothing;
  template <int count, class Other>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment&, const Other& other, Nothing&) const {
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      float values[8];
      other.load(i, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i + j] += values[j];
    }
  }
  template <int columns>
  __device__ __forceinline__ void end_tile(Nothing&, const Fragment&, const Meeting&) const {}
};

// With any store, as those that leave other groups' rows alone: 16 bytes of a row for each lane, exchanged among the four that
// share it. The matrix may be C itself. `pitch`: from one row to the next, in elements.
struct AddRows {
  static constexpr int narrowing = 1;
  const bf16* other = nullptr;
  int pitch = 0;

  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const Fragment& at) const {
    static_assert(count % 16 == 0, "four lanes load 32 columns");
    const int first = at.first_column + static_cast<int>(device::lane_index()) % 4 * 8, last = at.column_end - 8;
#pragma unroll
    for (int lower = 0; lower <= 2; lower += 2) {
      const bf16* const from = other + static_cast<std::size_t>(min(at.row(lower), at.row_end - 1)) * pitch;
      uint4 loaded[count / 16];
#pragma unroll
      for (int quad = 0; quad < count / 16; ++quad)
        loaded[quad] = *reinterpret_cast<const uint4*>(from + min(first + quad * 32, last));
#pragma unroll
      for (int quad = 0; quad < count / 16; ++quad) {
        const uint4 v = detail::transpose_quad(loaded[quad]);
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[quad * 16 + 4 * i + lower] += __uint_as_float(words[i] << 16);
          sums[quad * 16 + 4 * i + lower + 1] += __uint_as_float(words[i] & 0xFFFF0000u);
        }
      }
    }
  }
};

}  // namespace aisp::gemm
