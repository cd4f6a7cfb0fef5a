// SPDX-License-Identifier: Apache-2.0
// Ways for a tile's sums to leave the registers that wgmma has left them in: by the threads in whole sectors, or through staging
// in shared memory by TMA. tma_store_epilogue is about the difference.
#pragma once
#include "gemm_pipeline.cuh"

#include <aisp/device/fence.cuh>
#include <aisp/device/matrix.cuh>

namespace aisp::ch10::gemm {

// Four words in each of four neighbouring lanes, transposed: word i of lane l is exchanged with word l of lane i.
__device__ __forceinline__ uint4 transpose_quad(uint4 w) {
  const bool upper = (threadIdx.x & 2) != 0, odd = (threadIdx.x & 1) != 0;
  const unsigned x = __shfl_xor_sync(~0u, upper ? w.x : w.z, 2), y = __shfl_xor_sync(~0u, upper ? w.y : w.w, 2);
  w = upper ? make_uint4(x, y, w.z, w.w) : make_uint4(w.x, w.y, x, y);
  const unsigned first = __shfl_xor_sync(~0u, odd ? w.x : w.y, 1), second = __shfl_xor_sync(~0u, odd ? w.z : w.w, 1);
  return odd ? make_uint4(first, w.y, second, w.w) : make_uint4(w.x, first, w.z, second);
}

// A warpgroup's 64 x tile_n sums to global memory in whole sectors: the four lanes that share a row exchange their pairs, and
// then each stores 16 bytes. `finish(j, upper, lower)` changes the sums of two columns, in a row and in the one 8 below it.
template <int count, class Finish>
__device__ __forceinline__ void store_sectors(const float (&sums)[count], bf16* c, std::size_t n, std::size_t first_row,
                                              std::size_t first_column, const Finish& finish) {
  static_assert(count % 16 == 0);
  const int t = threadIdx.x % warpgroup_threads;
  bf16* const to = c + (first_row + t / 32 * 16 + t % 32 / 4) * n + first_column + t % 4 * 8;
#pragma unroll
  for (int j = 0; j < count / 4; j += 4) {
    unsigned upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const s = sums + 4 * (j + i);
      float2 above{s[0], s[1]}, below{s[2], s[3]};
      finish(j + i, above, below);
      upper[i] = device::narrow_bf16(above.x, above.y);
      lower[i] = device::narrow_bf16(below.x, below.y);
    }
    *reinterpret_cast<uint4*>(to + j * 8) = transpose_quad(make_uint4(upper[0], upper[1], upper[2], upper[3]));
    *reinterpret_cast<uint4*>(to + 8 * n + j * 8) = transpose_quad(make_uint4(lower[0], lower[1], lower[2], lower[3]));
  }
}
template <int count>
__device__ __forceinline__ void store_sectors(const float (&sums)[count], bf16* c, std::size_t n, std::size_t first_row,
                                              std::size_t first_column) {
  store_sectors(sums, c, n, first_row, first_column, [](int, float2&, float2&) {});
}

// The place of a warp's sums: the first row and column, in a matrix of n columns.
struct Target {
  bf16* c;
  int n, row, column;
  __device__ bf16* at(int down, int right) const { return c + static_cast<std::size_t>(row + down) * n + column + right; }
};

// Staging of one warp's sums: boxes of 16 rows of 64 columns, 128 bytes a row, swizzled as TMA has it, so that neither stmatrix
// nor what reads the rows meets a bank twice.
constexpr int box_rows = 16, box_columns = 64, box_bytes = box_rows * box_columns * 2;

// The warp's sums of 64 columns, beginning with sums[first], to `box`.
template <int count>
__device__ __forceinline__ void stage_box(const float (&sums)[count], int first, std::uint32_t box) {
  const unsigned lane = device::lane_index(), row = lane % 16;
  const std::uint32_t to = box + row * 128;
  const unsigned chunk = lane / 16 ^ row % 8;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const float* const s = sums + first + pair * 8;
    device::store_matrices(to + (chunk ^ static_cast<unsigned>(2 * pair)) * 16, device::narrow_bf16(s[0], s[1]),
                           device::narrow_bf16(s[2], s[3]), device::narrow_bf16(s[4], s[5]), device::narrow_bf16(s[6], s[7]));
  }
}

// By TMA, box by box through `buffers` boxes of staging. A box is waited for when its place is needed again; that of the tile's
// last boxes is one tile later. A warp is on its own here: it fences and meets no other.
template <int buffers>
struct TmaStore {
  static constexpr unsigned staging_bytes = buffers * box_bytes;
  static constexpr bool asynchronous = true;
  template <int count>
  static __device__ __forceinline__ void put(const float (&sums)[count], unsigned char* staging, const CUtensorMap& c_boxes,
                                             const Target& to) {
    static_assert(count / 32 % buffers == 0);  // so that a tile begins with the place that was filled first
    const bool leader = device::lane_index() == 0;
#pragma unroll
    for (int box = 0; box < count / 32; ++box) {
      unsigned char* const at = staging + box % buffers * box_bytes;
      if (leader) device::wait_stores_read<buffers - 1>();
      __syncwarp();
      stage_box(sums, box * 32, device::shared_address(at));
      device::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        device::tensor_store_2d(&c_boxes, to.column + box * box_columns, to.row, at);
        device::commit_stores();
      }
    }
  }
};

inline CUtensorMap c_map(const bf16* c, std::size_t m, std::size_t n) { return matrix_map_bf16(c, m, n, box_rows, box_columns); }

}  // namespace aisp::ch10::gemm
