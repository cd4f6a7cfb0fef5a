// SPDX-License-Identifier: Apache-2.0
// A in a narrower type than wgmma multiplies, as weights of four bits are: the ring brings its codes, and each consumer expands
// its rows while its products before are under way; to registers, which wgmma takes as A, or to shared memory. An object of
// `Codes`, made before the first stage, says how:
//   using Factor;
//     what the codes become, bf16 or e4m3
//   static constexpr int block_bytes;
//     of 64 rows by 128 bytes of Factor along K, codes and scales, in an order that was made once, before: a multiple of 128
//   static constexpr bool in_registers;
//   __device__ void expand(const std::uint8_t* block, unsigned (&a)[4][4]) const;
//     in registers: what this thread of a warpgroup gives to the four products of a block
//   __device__ void expand(const std::uint8_t* block, std::uint8_t* rows) const;
//     otherwise this thread's part of 64 rows of 128 bytes, swizzled as device::operand() wants them
//   __device__ float2 scales(const std::uint8_t* block) const;
//     for ScaledExpanded: of the thread's upper row and of its lower one
// Blocks of A lie as [m / 64][k / tile_k], rows that do not exist included.
#pragma once
#include <aisp/device/fence.cuh>

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
  // Expanded rows, if they are not in registers, have room behind the codes.
  template <int extent>
  static constexpr int rows_at = (tile_bytes<extent> + 1023) / 1024 * 1024;
  template <int extent>
  static constexpr int tile_elements = Codes::in_registers ? tile_bytes<extent> : rows_at<extent> + extent * 128;

  template <int extent>
  static __device__ __forceinline__ void load(Element* tile, const CUtensorMap* map, int first, int k, std::uint64_t* full,
                                              std::uint16_t = 0) {
    static_assert(extent % 64 == 0);
    device::tensor_load_3d(tile, map, 0, k / tile_k * lines, first / 64, full);
  }
};

namespace detail {

// A's operands of a stage, of every 64 rows for four steps along K; in shared memory they are where they were expanded to.
template <class C, bool in_registers = C::A::Codes::in_registers>
struct Expanded {
  unsigned words[C::parts][4][4];
};
template <class C>
struct Expanded<C, false> {};

template <class C>
__device__ __forceinline__ std::uint8_t* expanded_rows(Ring<C>& ring, int stage, int first_row) {
  return ring.a[stage] + C::A::template rows_at<C::tile_m> + first_row * 128;
}

template <class C>
__device__ __forceinline__ void expand_stage(Ring<C>& ring, int stage, int first_row, const typename C::A::Codes& codes,
                                             Expanded<C>& a) {
  using Codes = typename C::A::Codes;
#pragma unroll
  for (int part = 0; part < C::parts; ++part) {
    const std::uint8_t* const block = ring.a[stage] + (first_row / 64 + part) * Codes::block_bytes;
    if constexpr (Codes::in_registers) {
      codes.expand(block, a.words[part]);
      // They are ready before wgmma_fence.
#pragma unroll
      for (auto& step : a.words[part]) {
#pragma unroll
        for (unsigned& word : step) asm volatile("" : "+r"(word)::"memory");
      }
    } else codes.expand(block, expanded_rows(ring, stage, first_row + part * 64));
  }
  if constexpr (!Codes::in_registers) {
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1 + first_row / C::rows, warpgroup_threads);
  }
}

template <class C, int count>
__device__ __forceinline__ void multiply_expanded(Ring<C>& ring, int stage, int first_row, int part, const Expanded<C>& a,
                                                  float (&sums)[count], bool add) {
  using B = typename C::B;
  const std::uint64_t b = B::descriptor(ring.b[stage], 0);
#pragma unroll
  for (unsigned step = 0; step < 4; ++step) {
    const std::uint64_t b_step = device::advance(b, step * B::step_bytes);
    if constexpr (C::A::Codes::in_registers)
      device::wgmma<C::operands, B::major>(sums, a.words[part][step], b_step, add || step > 0);
    else
      device::wgmma<C::operands, Major::k, B::major>(
          sums, device::advance(device::operand(expanded_rows(ring, stage, first_row + part * 64)), step * 32), b_step,
          add || step > 0);
  }
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
struct ExpandedInTensorCores {
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
    const typename C::A::Codes codes;
    int previous = -1;
    const auto visit = [&](Registers<C>& now, Registers<C>&, int step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      detail::expand_stage(ring, at.stage, first_row, codes, now.a);
#pragma unroll
      for (auto& part : sums) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part)
        detail::multiply_expanded(ring, at.stage, first_row, part, now.a, sums[part], step > 0);
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
struct ScaledExpanded {
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
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (float& sum : part) sum = 0;
    }
    const typename C::A::Codes codes;
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
      detail::expand_stage(ring, at.stage, first_row, codes, now.a);
#pragma unroll
      for (auto& part : now.products) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        detail::multiply_expanded(ring, at.stage, first_row, part, now.a, now.products[part], false);
        now.scales[part] = codes.scales(ring.a[at.stage] + (first_row / 64 + part) * C::A::block_bytes);
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
