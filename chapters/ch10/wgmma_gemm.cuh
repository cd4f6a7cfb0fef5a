// SPDX-License-Identifier: Apache-2.0
// The parts of a GEMM on TMA and wgmma that the rungs of this chapter's ladder share: a ring of stages, the loop that fills it,
// the loop that multiplies, and the plainest epilogue. Each rung puts them together in its own kernel. C[m][n] = A[m][k] B[k][n],
// row-major, bf16; fp8_matmul's operands both lie along K.
#pragma once
#include <aisp/device/matrix.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device/wgmma_bf16.cuh>
#include <aisp/tensor_map.hpp>

#include <cuda_bf16.h>

#include <cstddef>
#include <type_traits>

namespace aisp::ch10::wgmma_gemm {

using bf16 = __nv_bfloat16;
constexpr int tile_k = 64;  // 128 bytes: one row of the swizzle
constexpr int warpgroup_threads = 128;

inline CUtensorMap a_map(const bf16* a, std::size_t m, std::size_t k, unsigned tile_m) {
  return matrix_map_bf16(a, m, k, tile_m, tile_k);
}

// B seen as n / 64 columns of boxes, so that one copy brings a whole tile: tile_n / 64 boxes of 64 rows (k) by 64 n, one after
// the other.
inline CUtensorMap b_map(const bf16* b, std::size_t k, std::size_t n, unsigned tile_n) {
  const std::uint64_t sizes[] = {64, k, n / 64}, strides[] = {n * sizeof(bf16), 64 * sizeof(bf16)};
  const std::uint32_t box[] = {64, tile_k, tile_n / 64};
  return tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, b, sizes, strides, box);
}

// What a ring holds besides A, which always lies along K, in rows of 128 bytes: the type of both operands, and how B lies. Here:
// B[k][n] in bf16.
struct RowMajorB {
  using Element = bf16;
  static constexpr int tile_k = wgmma_gemm::tile_k;

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
    static_assert(count == 32 || count == 64 || count == 96 || count == 128);
    using device::Major;
    if constexpr (count == 32) device::wgmma_m64n64k16<Major::k, Major::mn>(sums, a, b, add);
    if constexpr (count == 64) device::wgmma_m64n128k16<Major::k, Major::mn>(sums, a, b, add);
    if constexpr (count == 96) device::wgmma_m64n192k16<Major::k, Major::mn>(sums, a, b, add);
    if constexpr (count == 128) device::wgmma_m64n256k16<Major::k, Major::mn>(sums, a, b, add);
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

// Where in the ring a producer or a consumer is; runs on from tile to tile.
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

// Fills the next stage, when its readers have left it, with the boxes at row `m` of A, column `n` of B and depth `k`. By one
// thread.
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

// Four words in each of four neighbouring lanes, transposed: word i of lane l is exchanged with word l of lane i.
__device__ __forceinline__ uint4 transpose_quad(uint4 w) {
  const bool upper = (threadIdx.x & 2) != 0, odd = (threadIdx.x & 1) != 0;
  const unsigned x = __shfl_xor_sync(~0u, upper ? w.x : w.z, 2), y = __shfl_xor_sync(~0u, upper ? w.y : w.w, 2);
  w = upper ? make_uint4(x, y, w.z, w.w) : make_uint4(w.x, w.y, x, y);
  const unsigned left = __shfl_xor_sync(~0u, odd ? w.x : w.y, 1), right = __shfl_xor_sync(~0u, odd ? w.z : w.w, 1);
  return odd ? make_uint4(left, w.y, right, w.w) : make_uint4(w.x, left, w.z, right);
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

}  // namespace aisp::ch10::wgmma_gemm
