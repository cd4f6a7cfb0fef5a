// SPDX-License-Identifier: Apache-2.0
// A in a narrower type than wgmma multiplies, as weights of four bits are: the ring brings its codes, and each consumer expands
// them in registers, which wgmma takes as A, while its products before are under way. `Codes` says how:
//   using Factor;
//     what the codes become, bf16 or e4m3
//   static constexpr int block_bytes;
//     of 64 rows by 128 bytes of Factor along K, codes and scales, in an order that was made once, before: a multiple of 128
//   static __device__ void expand(const std::uint8_t* block, unsigned (&a)[4][4]);
//     what this thread of a warpgroup gives to the four products of a block
//   static __device__ float2 scales(const std::uint8_t* block);
//     for ScaledInRegisters: of the thread's upper row and of its lower one
// Blocks of A lie as [m / 64][k / tile_k], rows that do not exist included.
#pragma once
#include "mainloop.cuh"

namespace aisp::gemm {

template <class Codes_>
struct Packed {
  using Codes = Codes_;
  using Element = std::uint8_t;
  using Factor = typename Codes::Factor;
  static constexpr Major major = Major::k;
  static constexpr bool packed = true;
  static constexpr int tile_k = 128 / sizeof(Factor), block_bytes = Codes::block_bytes, lines = block_bytes / 128;
  static_assert(block_bytes % 128 == 0, "TMA brings lines of 128 bytes");
  template <int extent>
  static constexpr unsigned tile_bytes = extent / 64 * block_bytes;
  template <int extent>
  static constexpr int tile_elements = tile_bytes<extent>;

  template <int extent>
  static __device__ __forceinline__ void load(Element* tile, const CUtensorMap* map, int first, int k, std::uint64_t* full,
                                              std::uint16_t = 0) {
    static_assert(extent % 64 == 0);
    device::tensor_load_3d(tile, map, 0, k / tile_k * lines, first / 64, full);
  }
};

namespace detail {

// The operands of a stage's products: A's of every 64 rows, for four steps along K.
template <class C>
using Expanded = unsigned[C::parts][4][4];

template <class C>
__device__ __forceinline__ void expand_stage(const Ring<C>& ring, int stage, int first_row, Expanded<C>& a) {
  using Codes = typename C::A::Codes;
#pragma unroll
  for (int part = 0; part < C::parts; ++part) {
    Codes::expand(ring.a[stage] + (first_row / 64 + part) * Codes::block_bytes, a[part]);
    // They are ready before wgmma_fence.
#pragma unroll
    for (auto& step : a[part]) {
#pragma unroll
      for (unsigned& word : step) asm volatile("" : "+r"(word)::"memory");
    }
  }
}

template <class C, int count>
__device__ __forceinline__ void multiply_expanded(const Ring<C>& ring, int stage, const unsigned (&a)[4][4], float (&sums)[count],
                                                  bool add) {
  using B = typename C::B;
  const std::uint64_t b = B::descriptor(ring.b[stage], 0);
#pragma unroll
  for (unsigned step = 0; step < 4; ++step)
    device::wgmma<C::operands, B::major>(sums, a[step], device::advance(b, step * B::step_bytes), add || step > 0);
}

// Calls `visit(now, before, step)` for each stage with one of two sets of registers, in turns, because wgmma still reads and
// writes the other one; and `finish` with that of the last stage.
template <class Registers, class Visit, class Finish>
__device__ __forceinline__ void in_turns(int steps, const Visit& visit, const Finish& finish) {
  Registers even, odd;
  for (int step = 0;;) {
    visit(even, odd, step);
    if (++step == steps) {
      finish(even);
      break;
    }
    visit(odd, even, step);
    if (++step == steps) {
      finish(odd);
      break;
    }
  }
}

}  // namespace detail

// Sums stay in the tensor cores, as with InTensorCores.
struct InRegisters {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 4;
  template <int tile_n>
  static constexpr int extra_sums = 32;

  template <class C>
  struct Registers {
    detail::Expanded<C> a;
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    int previous = -1;
    const auto visit = [&](Registers<C>& now, Registers<C>&, int step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      detail::expand_stage(ring, at.stage, first_row, now.a);
#pragma unroll
      for (auto& part : sums) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part) detail::multiply_expanded(ring, at.stage, now.a[part], sums[part], step > 0);
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (previous >= 0) ring.give_back(previous);
      previous = at.stage;
      at.next();
    };
    detail::in_turns<Registers<C>>(C::steps(tile), visit, [](Registers<C>&) {});
    queued();
    device::wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    ring.give_back(previous);
  }
};

// The sums of each stage are multiplied by a scale of each row, which its block of codes holds, and added to others in fp32,
// while the tensor cores multiply the next stage.
struct ScaledInRegisters {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 4;
  template <int tile_n>
  static constexpr int extra_sums = 32 + tile_n;

  template <class C>
  struct Registers {
    detail::Expanded<C> a;
    float products[C::parts][C::tile_n / 2];
    float2 scales[C::parts];
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    using Codes = typename C::A::Codes;
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (float& sum : part) sum = 0;
    }
    int previous = -1;
    const auto add = [&](Registers<C>& done) {
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        device::wgmma_touch(done.products[part]);
#pragma unroll
        for (int i = 0; i < C::tile_n / 2; ++i)
          sums[part][i] = fmaf(done.products[part][i], i % 4 < 2 ? done.scales[part].x : done.scales[part].y, sums[part][i]);
      }
    };
    const auto visit = [&](Registers<C>& now, Registers<C>& before, int step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      detail::expand_stage(ring, at.stage, first_row, now.a);
#pragma unroll
      for (auto& part : now.products) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        detail::multiply_expanded(ring, at.stage, now.a[part], now.products[part], false);
        now.scales[part] = Codes::scales(ring.a[at.stage] + (first_row / 64 + part) * Codes::block_bytes);
      }
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (step > 0) {
        add(before);
        ring.give_back(previous);
      }
      previous = at.stage;
      at.next();
    };
    detail::in_turns<Registers<C>>(C::steps(tile), visit, [&](Registers<C>& last) {
      queued();
      device::wgmma_wait<0>();
      add(last);
    });
    ring.give_back(previous);
  }
};

}  // namespace aisp::gemm
