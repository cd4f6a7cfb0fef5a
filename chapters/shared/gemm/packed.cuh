// SPDX-License-Identifier: Apache-2.0
// A in a narrower type than wgmma multiplies, as weights of four bits are: the ring brings its codes, and each consumer expands
// its rows while its products before are under way; to registers, which wgmma takes as A, or to shared memory. An object of
// `Codes`, made before the first stage, says how:
//   using Factor;
//     what the codes become, bf16 or e4m3
//   static constexpr int block_bytes;
//     of 64 rows by 128 bytes of Factor along K, codes and scales, in an order that was made once, before: a multiple of 128
//   static constexpr bool in_registers;
//   struct Words; __device__ Words load(const std::uint8_t* block) const;
//   __device__ void expand(const Words& words, int step, unsigned (&a)[4]) const;
//     in registers: what this thread of a warpgroup has of a block, and what it gives of that to one of four products. Each word
//     of `a` must be computed. wgmma reads it until the products are waited for, and ptxas keeps its register until then; that of
//     a mere copy of a loaded word it gives to the next stage's codes (scripts/check-wgmma finds that).
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
  // Expanded rows, if they are not in registers, have room after the codes.
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

// A thread's part of a stage before its products are queued: in registers, codes.
template <class C, bool in_registers = C::A::Codes::in_registers>
struct Loaded {
  static_assert(C::stages >= 3, "a stage is waited for while two are in use");
  using Codes = typename C::A::Codes;
  typename Codes::Words words[C::parts];
  __device__ __forceinline__ void load(const Codes& codes, const std::uint8_t* blocks) {
#pragma unroll
    for (int part = 0; part < C::parts; ++part) words[part] = codes.load(blocks + part * Codes::block_bytes);
  }
};
template <class C>
struct Loaded<C, false> {
  static_assert(C::stages >= 3, "a stage is waited for while two are in use");
  __device__ __forceinline__ void load(const typename C::A::Codes&, const std::uint8_t*) {}
};

// Queues the products of a stage, one directly after the other.
template <class C>
__device__ __forceinline__ void multiply_expanded(Ring<C>& ring, int stage, int first_row, const typename C::A::Codes& codes,
                                                  const Loaded<C>& loaded, Expanded<C>& a, float (&sums)[C::parts][C::tile_n / 2],
                                                  bool add) {
  using Codes = typename C::A::Codes;
  using B = typename C::B;
  const std::uint64_t b = B::descriptor(ring.b[stage], 0);
#pragma unroll
  for (auto& part : sums) device::wgmma_touch(part);
  if constexpr (Codes::in_registers) {
#pragma unroll
    for (int part = 0; part < C::parts; ++part) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        codes.expand(loaded.words[part], step, a.words[part][step]);
#pragma unroll
        for (unsigned& word : a.words[part][step]) asm volatile("" : "+r"(word)::"memory");  // before the fence
      }
    }
    device::wgmma_fence();
#pragma unroll
    for (unsigned step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < C::parts; ++part)
        device::wgmma<C::operands, B::major>(sums[part], a.words[part][step], device::advance(b, step * B::step_bytes),
                                             add || step > 0);
    }
  } else {
    const std::uint8_t* const blocks = ring.a[stage] + first_row / 64 * Codes::block_bytes;
    std::uint8_t* const rows = ring.a[stage] + C::A::template rows_at<C::tile_m> + first_row * 128;
#pragma unroll
    for (int part = 0; part < C::parts; ++part) codes.expand(blocks + part * Codes::block_bytes, rows + part * 64 * 128);
    device::fence_proxy_async_shared();
    device::named_barrier_sync(1 + first_row / C::rows, warpgroup_threads);
    device::wgmma_fence();
#pragma unroll
    for (int part = 0; part < C::parts; ++part) {
      const std::uint64_t a_of_part = device::operand(rows + part * 64 * 128);
#pragma unroll
      for (unsigned step = 0; step < 4; ++step)
        device::wgmma<C::operands, Major::k, B::major>(sums[part], device::advance(a_of_part, step * 32),
                                                       device::advance(b, step * B::step_bytes), add || step > 0);
    }
  }
  device::wgmma_commit();
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

// Sums stay in the tensor cores, as with InTensorCores. Codes of the next stage are fetched while products are under way.
struct ExpandedInTensorCores {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 4;
  template <int tile_n>
  static constexpr int extra_sums = 40;

  template <class C>
  struct Registers {
    detail::Expanded<C> a;
  };

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    const typename C::A::Codes codes;
    const int steps = C::steps(tile);
    int previous = -1;
    detail::Loaded<C> loaded;
    const auto fetch = [&] {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      loaded.load(codes, ring.a[at.stage] + first_row / 64 * C::A::block_bytes);
    };
    fetch();
    const auto visit = [&](Registers<C>& now, Registers<C>&, int step) {
      const int stage = at.stage;
      detail::multiply_expanded(ring, stage, first_row, codes, loaded, now.a, sums, step > 0);
      at.next();
      if (step + 1 < steps) fetch();
      device::wgmma_wait<1>();
      if (previous >= 0) ring.give_back(previous);
      previous = stage;
    };
    detail::in_turns<Registers<C>>(steps, visit, [](Registers<C>&) {});
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
    const int steps = C::steps(tile);
    int previous = -1;
    detail::Loaded<C> loaded;
    float2 scales[C::parts];
    const auto fetch = [&] {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      const std::uint8_t* const blocks = ring.a[at.stage] + first_row / 64 * C::A::block_bytes;
      loaded.load(codes, blocks);
#pragma unroll
      for (int part = 0; part < C::parts; ++part) scales[part] = codes.scales(blocks + part * C::A::block_bytes);
    };
    fetch();
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
      const int stage = at.stage;
      detail::multiply_expanded(ring, stage, first_row, codes, loaded, now.a, now.products, false);
#pragma unroll
      for (int part = 0; part < C::parts; ++part) now.scales[part] = scales[part];
      at.next();
      if (step + 1 < steps) fetch();
      device::wgmma_wait<1>();
      if (step > 0) {
        add(before);
        ring.give_back(previous);
      }
      previous = stage;
    };
    detail::in_turns<Registers<C>>(steps, visit, [&](Registers<C>& last) {
      queued();
      device::wgmma_wait<0>();
      add(last);
    });
    ring.give_back(previous);
  }
};

}  // namespace aisp::gemm
