// SPDX-License-Identifier: Apache-2.0
// What the persistent rungs of this chapter's ladder share: the order of the tiles, ways for sums to leave a warp, and the kernel
// that walks over tiles. C[m][n] = A[m][k] B[k][n], row-major, bf16.
#pragma once
#include "wgmma_gemm.cuh"

#include <aisp/device/fence.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device_attribute.hpp>

#include <algorithm>

namespace aisp::ch10::persistent_gemm {

using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads, wgmma_gemm::Cursor;

// A producer warpgroup, one thread of which asks for the loads, and two consumers of 64 rows each. Every thread of a block of 384
// starts with 168 registers; the producer gives most of its own to the consumers.
constexpr int threads = 3 * warpgroup_threads, tile_m = 128;
constexpr int producer_registers = 40, consumer_registers = 232;

// Tiles in bands of `band` rows, each walked column by column; a band of one row is row-major order. The last ones may reach
// beyond the matrix.
struct TileOrder {
  struct Place {
    int row, column;
  };
  int rows, columns, band;

  TileOrder(std::size_t m, std::size_t n, int tile_rows, int tile_columns, int band_rows)
      : rows{(static_cast<int>(m) + tile_rows - 1) / tile_rows},
        columns{(static_cast<int>(n) + tile_columns - 1) / tile_columns},
        band{band_rows} {}

  __host__ __device__ int count() const { return rows * columns; }
  __device__ Place operator[](int tile) const {
    const int first_row = tile / (band * columns) * band, height = min(band, rows - first_row),
              in_band = tile - first_row * columns;
    return {first_row + in_band % height, in_band / height};
  }
};

// Where a warp's sums go: the first row and column, in a matrix of n columns.
struct Target {
  bf16* c;
  int n, row, column;
  __device__ bf16* at(int down, int right) const { return c + static_cast<std::size_t>(row + down) * n + column + right; }
};

// As wgmma leaves them: a thread stores pairs of neighbours, an instruction 16 bytes in each of eight rows.
struct DirectStore {
  static constexpr unsigned staging_bytes = 0;
  static constexpr bool asynchronous = false;
  template <int count>
  static __device__ __forceinline__ void put(const float (&sums)[count], unsigned char*, const CUtensorMap&, const Target& to) {
    const int lane = static_cast<int>(device::lane_index());
    bf16* const upper = to.at(lane / 4, lane % 4 * 2);
    bf16* const lower = to.at(lane / 4 + 8, lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
      *reinterpret_cast<unsigned*>(upper + j * 8) = device::narrow_bf16(sums[4 * j], sums[4 * j + 1]);
      *reinterpret_cast<unsigned*>(lower + j * 8) = device::narrow_bf16(sums[4 * j + 2], sums[4 * j + 3]);
    }
  }
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

// Block i computes the tiles i, i + gridDim.x, ...: with as many blocks as tiles it is the kernel that is not persistent. The
// ring runs on from tile to tile, so that the next tile's loads are under way while the consumers store. Store::put takes a
// warp's 16 rows of sums to C, through Store::staging_bytes a warp behind the ring.
template <class R, class Store>
constexpr unsigned shared_bytes = sizeof(R) + 8 * Store::staging_bytes;

template <class R, class Store>
static __global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                       const __grid_constant__ CUtensorMap b,
                                                                       const __grid_constant__ CUtensorMap c_boxes, bf16* c,
                                                                       int n, int k, TileOrder order) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &b, &c_boxes}) device::prefetch_tensor_map(map);
    ring.init(2);
  }
  __syncthreads();

  Cursor<R> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4, tiles = order.count();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
      const auto [row, column] = order[tile];
      for (int depth = 0; depth < k; depth += tile_k)
        wgmma_gemm::load_stage(ring, at, &a, &b, row * tile_m, column * R::tile_n, depth);
    }
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[R::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, k / tile_k, sums);
    const auto [row, column] = order[tile];
    Store::put(sums, memory + sizeof(R) + warp * Store::staging_bytes, c_boxes,
               {c, n, row * tile_m + warp * 16, column * R::tile_n});
  }
  if constexpr (Store::asynchronous) device::wait_stores_read<0>();  // they still read this block's shared memory
}

inline CUtensorMap c_map(const bf16* c, std::size_t m, std::size_t n) { return matrix_map_bf16(c, m, n, box_rows, box_columns); }

}  // namespace aisp::ch10::persistent_gemm
