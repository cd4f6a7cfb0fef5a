// SPDX-License-Identifier: Apache-2.0
// Shared by the rungs of this chapter's ladder from TMA on: the order of tiles, a ring of stages in shared memory, the step that
// fills a stage and the loop that multiplies. Each rung puts them together in its own kernel, in its own file. C[m][n] = A[m][k]
// B[k][n], row-major, bf16 with fp32 sums; fp8_matmul's operands both lie along K.
#pragma once
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/warpgroup.cuh>
#include <aisp/device/wgmma_products.cuh>
#include <aisp/tensor_map.hpp>

#include <cuda_bf16.h>

#include <cstddef>

namespace aisp::ch10::gemm {

using bf16 = __nv_bfloat16;
constexpr int tile_k = 64;  // 128 bytes: one row of the swizzle
constexpr int warpgroup_threads = 128;
// A producer warpgroup, one thread of which asks for the loads, and two consumers of 64 rows each. Every thread of a block of 384
// starts with 168 registers; the producer gives most of its own to the consumers.
constexpr int threads = 3 * warpgroup_threads, tile_m = 128;
constexpr int producer_registers = 40, consumer_registers = 232;

inline CUtensorMap a_map(const bf16* a, std::size_t m, std::size_t k, unsigned tile_rows) {
  return matrix_map_bf16(a, m, k, tile_rows, tile_k);
}

// B seen as n / 64 columns of boxes, so that one copy brings a whole tile: a row of boxes of 64 rows (k) by 64 n, one after
// the other.
inline CUtensorMap b_map(const bf16* b, std::size_t k, std::size_t n, unsigned tile_columns) {
  const std::uint64_t sizes[] = {64, k, n / 64}, strides[] = {n * sizeof(bf16), 64 * sizeof(bf16)};
  const std::uint32_t box[] = {64, tile_k, tile_columns / 64};
  return tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, b, sizes, strides, box);
}

// The contents of a ring besides A, which always lies along K, in rows of 128 bytes: the type of both operands, and how B lies.
// Here: B[k][n] in bf16.
struct RowMajorB {
  using Element = bf16;
  static constexpr int tile_k = gemm::tile_k;

  static __device__ __forceinline__ void load_b(void* to, const CUtensorMap* b, int n, int k, std::uint64_t* full) {
    device::tensor_load_3d(to, b, 0, k, n / 64, full);
  }
  static __device__ __forceinline__ void load_b_multicast(void* to, const CUtensorMap* b, int n, int k, std::uint64_t* full,
                                                          std::uint16_t blocks) {
    device::tensor_load_3d_multicast(to, b, 0, k, n / 64, full, blocks);
  }
  static __device__ __forceinline__ std::uint64_t b_operand(const Element* b) { return device::operand(b, 1024, tile_k * 128); }
  static constexpr unsigned b_step_bytes = 16 * 128;

  template <int count>
  static __device__ __forceinline__ void multiply(float (&sums)[count], std::uint64_t a, std::uint64_t b, bool add) {
    device::wgmma<device::Operands::bf16, device::Major::k, device::Major::mn>(sums, a, b, add);
  }
};

// In dynamic shared memory, aligned to 1024 bytes. full[s]: the bytes of stage s have come; empty[s]: its readers are done with
// it.
template <int tile_m_, int tile_n_, int stages_, class Operands_ = RowMajorB>
struct Ring {
  using Operands = Operands_;
  using Element = typename Operands::Element;
  static constexpr int tile_m = tile_m_, tile_n = tile_n_, tile_k = Operands::tile_k, stages = stages_;
  static constexpr unsigned stage_bytes = (tile_m + tile_n) * tile_k * sizeof(Element);
  alignas(1024) Element a[stages][tile_m * tile_k];
  alignas(1024) Element b[stages][tile_k * tile_n];
  std::uint64_t full[stages], empty[stages];

  // By one thread, before a __syncthreads (or cluster barrier). `readers`: arrivals that free a stage.
  __device__ void init(unsigned readers) {
    for (int stage = 0; stage < stages; ++stage) {
      device::barrier_init(&full[stage], 1);
      device::barrier_init(&empty[stage], readers);
    }
    device::fence_barrier_init();
  }
};

// The place of a producer or a consumer in the ring; runs on from tile to tile.
template <class R>
struct Cursor {
  int stage = 0;
  unsigned phase = 0;
  __device__ void next() {
    if (++stage < R::stages) return;
    stage = 0;
    phase ^= 1;
  }
};

// Fills the next stage, when its readers have left it, with the boxes at row `m` of A, column `n` of B, both from `k` on. By
// one thread.
template <class R>
__device__ __forceinline__ void load_stage(R& ring, Cursor<R>& at, const CUtensorMap* a, const CUtensorMap* b, int m, int n,
                                           int k) {
  device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
  device::barrier_arrive_expect(&ring.full[at.stage], R::stage_bytes);
  device::tensor_load_2d(ring.a[at.stage], a, k, m, &ring.full[at.stage]);
  R::Operands::load_b(ring.b[at.stage], b, n, k, &ring.full[at.stage]);
  at.next();
}

// Queues the products of one stage, 32 bytes of K each: rows `first_row` to + 63 of the tile with all columns of it.
template <class R>
__device__ __forceinline__ void multiply_stage(R& ring, int stage, int first_row, float (&sums)[R::tile_n / 2], bool add) {
  using Operands = typename R::Operands;
  const std::uint64_t a = device::operand(ring.a[stage] + first_row * R::tile_k), b = Operands::b_operand(ring.b[stage]);
#pragma unroll
  for (unsigned step = 0; step < 4; ++step)
    Operands::multiply(sums, device::advance(a, step * 32), device::advance(b, step * Operands::b_step_bytes), add || step > 0);
}

// One tile by one consumer warpgroup: `steps` stages, one group of products kept in flight; a stage is given back, by
// `free(stage)`, when the products of the next have been queued.
template <class R, class Free>
__device__ __forceinline__ void multiply_tile(R& ring, Cursor<R>& at, int first_row, int steps, float (&sums)[R::tile_n / 2],
                                              const Free& free) {
  int previous = -1;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    device::wgmma_touch(sums);
    device::wgmma_fence();
    multiply_stage(ring, at.stage, first_row, sums, step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (previous >= 0) free(previous);
    previous = at.stage;
    at.next();
  }
  device::wgmma_wait<0>();
  device::wgmma_touch(sums);
  free(previous);
}

// The same where only this block has the stage: one arrival of the warpgroup gives it back.
template <class R>
__device__ __forceinline__ void multiply_tile(R& ring, Cursor<R>& at, int first_row, int steps, float (&sums)[R::tile_n / 2]) {
  const bool leader = threadIdx.x % warpgroup_threads == 0;
  multiply_tile(ring, at, first_row, steps, sums, [&ring, leader](int stage) {
    if (leader) device::barrier_arrive(&ring.empty[stage]);
  });
}

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

}  // namespace aisp::ch10::gemm
