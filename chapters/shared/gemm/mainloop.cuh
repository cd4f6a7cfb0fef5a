// SPDX-License-Identifier: Apache-2.0
// How a consumer multiplies its rows of a tile: three ways (and two of integers.cuh), of one form. `queued` is called once, when
// the last products of the tile have been given to the tensor cores: in the ping-pong the other consumer may then queue its own.
#pragma once
#include <type_traits>

#include "pipeline.cuh"
#include "schedule.cuh"

namespace aisp::gemm {

// Queues the four products of a stage: 64 rows of the tile from `first_row` on with as many columns from `first_column` on as
// there are sums for.
template <class C, class Sum, int count>
__device__ __forceinline__ void multiply_stage(const Ring<C>& ring, int stage, int first_row, int first_column,
                                               Sum (&sums)[count], bool add) {
  constexpr bool integers = C::operands == device::Operands::s8;
  static_assert(integers == std::is_same_v<Sum, int>, "products of s8 are added up by the main loops of integers.cuh");
  using A = typename C::A;
  using B = typename C::B;
  const std::uint64_t a = A::descriptor(ring.a[stage], first_row), b = B::descriptor(ring.b[stage], first_column);
#pragma unroll
  for (unsigned step = 0; step < 4; ++step) {
    const std::uint64_t a_step = device::advance(a, step * A::step_bytes), b_step = device::advance(b, step * B::step_bytes);
    if constexpr (integers) device::wgmma<C::operands>(sums, a_step, b_step, add || step > 0);
    else device::wgmma<C::operands, A::major, B::major>(sums, a_step, b_step, add || step > 0);
  }
}

namespace detail {

// All stages of a tile. One group of products is kept in flight: a stage is given back when those of the next have been queued.
template <class C, class Sum, class Queued>
__device__ __forceinline__ void multiply_in_flight(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                                   Sum (&sums)[C::parts][C::tile_n / 2], const Queued& queued) {
  const int steps = C::steps(tile);
  int previous = -1;
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    device::wgmma_fence();
#pragma unroll
    for (int part = 0; part < C::parts; ++part) multiply_stage(ring, at.stage, first_row + part * 64, 0, sums[part], step > 0);
    device::wgmma_commit();
    device::wgmma_wait<1>();
    if (previous >= 0) ring.give_back(previous);
    previous = at.stage;
    at.next();
  }
  queued();
  device::wgmma_wait<0>();
#pragma unroll
  for (auto& part : sums) device::wgmma_touch(part);
  ring.give_back(previous);
}

}  // namespace detail

// Sums stay in the tensor cores from the first step to the last; those of one-byte floats keep about 14 bits there.
struct InTensorCores {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 1;  // of a warpgroup, that give a stage back
  template <int tile_n>
  static constexpr int extra_sums = 0;

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    detail::multiply_in_flight(ring, at, tile, first_row, sums, queued);
  }
};

namespace detail {

// A second set of sums of `width` columns takes what one stage adds; `add(part, chunk, products, to)` adds them to the others.
template <int width, class C, class Queued, class Add>
__device__ __forceinline__ void multiply_by_stages(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                                   float (&sums)[C::parts][C::tile_n / 2], const Queued& queued, const Add& add) {
  constexpr int chunks = C::tile_n / width;
  static_assert(C::tile_n % width == 0);
#pragma unroll
  for (auto& part : sums) {
#pragma unroll
    for (float& sum : part) sum = 0;
  }
  const int steps = C::steps(tile);
  for (int step = 0; step < steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
    for (int i = 0; i < C::parts * chunks; ++i) {
      const int part = i / chunks, chunk = i % chunks;
      float products[width / 2];
      device::wgmma_touch(products);
      device::wgmma_fence();
      multiply_stage(ring, at.stage, first_row + part * 64, chunk * width, products, false);
      device::wgmma_commit();
      const auto scale = add.scale(at.stage, step, part, chunk);  // fetched while the products are under way
      const bool last = i + 1 == C::parts * chunks;
      if (last && step + 1 == steps) queued();
      device::wgmma_wait<0>();
      device::wgmma_touch(products);
      if (last) ring.give_back(at.stage);
      add(products, sums[part] + chunk * (width / 2), scale);
    }
    at.next();
  }
}

}  // namespace detail

// The sums of each stage, 128 one-byte elements of K, are added to others in fp32. While one consumer adds, another's products
// keep the tensor cores busy.
struct Promoted {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 1;
  template <int tile_n>
  static constexpr int width = tile_n <= 192 ? tile_n : 128;
  template <int tile_n>
  static constexpr int extra_sums = width<tile_n> / 2;

  struct Add {
    static __device__ __forceinline__ int scale(int, int, int, int) { return 0; }
    template <int count>
    __device__ __forceinline__ void operator()(const float (&products)[count], float* to, int) const {
#pragma unroll
      for (int i = 0; i < count; ++i) to[i] += products[i];
    }
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    detail::multiply_by_stages<width<C::tile_n>>(ring, at, tile, first_row, sums, queued, Add{});
  }
};

// The same with a scale for each row of A and 128 of K, which the ring brings (a_scales[k / 128][m]), and one for each 128 x 128
// of B: b_scales[group][n / 128][k / 128], rounded up.
struct BlockScaled {
  static constexpr bool scaled = true;
  static constexpr int arrivals = 4;
  static constexpr int block = 128;
  template <int tile_n>
  static constexpr int width = tile_n < block ? tile_n : block;
  template <int tile_n>
  static constexpr int extra_sums = width<tile_n> / 2;

  const float* b_scales = nullptr;
  int n_blocks = 0, k_blocks = 0;

  template <class C>
  struct Add {
    const Ring<C>& ring;
    const float* of_blocks;  // of the tile's first columns and first K
    int first_row, more_n_blocks, k_blocks;

    __device__ __forceinline__ float2 scale(int stage, int step, int part, int chunk) const {
      // The last columns of a tile may lie after the last block.
      const float of_block = __ldg(of_blocks + min(chunk, more_n_blocks) * k_blocks + step);
      const float* const of_rows = ring.a_scales[stage] + first_row + part * 64;
      return {of_rows[0] * of_block, of_rows[8] * of_block};
    }
    template <int count>
    __device__ __forceinline__ void operator()(const float (&products)[count], float* to, float2 scale) const {
#pragma unroll
      for (int i = 0; i < count; ++i) to[i] = fmaf(products[i], i % 4 < 2 ? scale.x : scale.y, to[i]);
    }
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    static_assert(C::tile_k == block && (C::tile_n % block == 0 || block % C::tile_n == 0), "a tile lies in whole blocks");
    const int warp_row = static_cast<int>(threadIdx.x) % warpgroup_threads / 32 * 16, n_block = tile.n / block;
    const Add<C> add{ring, b_scales + (tile.group * n_blocks + n_block) * k_blocks + tile.k / block,
                     first_row + warp_row + static_cast<int>(device::lane_index()) / 4 + tile.m % 4, n_blocks - 1 - n_block,
                     k_blocks};
    detail::multiply_by_stages<width<C::tile_n>>(ring, at, tile, first_row, sums, queued, add);
  }
};

}  // namespace aisp::gemm
