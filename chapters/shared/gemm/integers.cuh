// SPDX-License-Identifier: Apache-2.0
// Products of s8, whose sums are s32: exact as long as K is at most 2^31 / 2^14 = 131072. They become fp32 once, when a tile is
// complete and they are scaled, which rounds those beyond 2^24 by up to 2^-24 of themselves. bf16 products with more columns of A
// and rows of B can be added to them, in the same registers: what is too large for s8 goes there.
#pragma once
#include "epilogue.cuh"
#include "mainloop.cuh"

namespace aisp::gemm {

// With a scale for each row of A and one for each column of B.
struct ScaledIntegers {
  static constexpr bool scaled = false, integers = true;
  static constexpr int arrivals = 1;
  template <int tile_n>
  static constexpr int extra_sums = 0;

  const float *rows = nullptr, *columns = nullptr;
  int m = 0, n = 0;

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    int bits[C::parts][C::tile_n / 2];
    multiply_scaled(ring, at, tile, first_row, bits, queued);
    as_floats<C>(sums, bits);
  }

 protected:
  // The sums stay in the registers of integers when they are numbers of fp32: two sets of sums would not fit.
  template <class C, class Queued>
  __device__ __forceinline__ void multiply_scaled(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                                  int (&bits)[C::parts][C::tile_n / 2], const Queued& queued) const {
    detail::multiply_in_flight(ring, at, tile, first_row, bits, queued);
    const int warp_row = static_cast<int>(threadIdx.x) % warpgroup_threads / 32 * 16;
#pragma unroll
    for (int part = 0; part < C::parts; ++part) scale(bits[part], {tile.m + first_row + part * 64 + warp_row, tile.n, m, n, 0});
  }
  template <class C>
  static __device__ __forceinline__ void as_floats(float (&sums)[C::parts][C::tile_n / 2],
                                                   const int (&bits)[C::parts][C::tile_n / 2]) {
#pragma unroll
    for (int part = 0; part < C::parts; ++part) {
#pragma unroll
      for (int i = 0; i < C::tile_n / 2; ++i) sums[part][i] = __int_as_float(bits[part][i]);
    }
  }

 private:
  // In place and one after the other, or the compiler wants the registers twice.
  template <int count>
  __device__ __forceinline__ void scale(int (&bits)[count], const Fragment& at) const {
    const float upper = at.row(0) < m ? rows[at.row(0)] : 0, lower = at.row(2) < m ? rows[at.row(2)] : 0;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      const float left = at.column(i) < n ? columns[at.column(i)] : 0;
      const float right = at.column(i + 1) < n ? columns[at.column(i + 1)] : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        asm volatile("{\n.reg .f32 x;\ncvt.rn.f32.s32 x, %0;\nmul.f32 x, x, %1;\nmov.b32 %0, x;\n}"
                     : "+r"(bits[i + j])
                     : "f"((j < 2 ? upper : lower) * (j % 2 == 0 ? left : right)));
    }
  }
};

// The other part is a2[m][k2] and b2[k2][n], of which the GPU knows how much is used: `used` columns of A, and zeros up to the
// next multiple of 64. A stage holds 64 of them. m is any number, n a multiple of 64.
struct IntegersThenBf16 : ScaledIntegers {
  static constexpr bool two_parts = true;
  using A2 = Operand<bf16>;
  using B2 = Operand<bf16, Major::mn>;

  const int* used = nullptr;

  __device__ __forceinline__ int more_steps() const { return (*used + A2::tile_k - 1) / A2::tile_k; }

  // As load_stage of the first part.
  template <class C, class Maps>
  __device__ __forceinline__ void load(Ring<C>& ring, Cursor<C>& at, const Maps& maps, const Tile& tile, unsigned rank) const {
    const int steps = more_steps();
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
      std::uint64_t* const full = &ring.full[at.stage];
      device::barrier_arrive_expect(full, Ring<C>::stage_bytes);
      const int k = step * A2::tile_k;
      bf16* const b = reinterpret_cast<bf16*>(ring.b[at.stage]);
      A2::load<C::tile_m>(reinterpret_cast<bf16*>(ring.a[at.stage]), &maps.a2, tile.m, k, full);
      if constexpr (C::cluster == 1) B2::load<C::tile_n>(b, &maps.b2, tile.n, k, full);
      else {
        constexpr int half = C::tile_n / 2;
        B2::load<half>(b + rank * (half * B2::tile_k), &maps.b2, tile.n + static_cast<int>(rank) * half, k, full, 0b11);
      }
      at.next();
    }
  }

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    const int steps = more_steps();
    int bits[C::parts][C::tile_n / 2];
    multiply_scaled(ring, at, tile, first_row, bits, [&] {
      if (steps == 0) queued();
    });
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
      for (auto& part : bits) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < C::parts; ++part) {
        const std::uint64_t a = A2::descriptor(reinterpret_cast<const bf16*>(ring.a[at.stage]), first_row + part * 64),
                            b = B2::descriptor(reinterpret_cast<const bf16*>(ring.b[at.stage]), 0);
#pragma unroll
        for (unsigned k = 0; k < 4; ++k)
          device::wgmma<device::Operands::bf16, A2::major, B2::major>(bits[part], device::advance(a, k * A2::step_bytes),
                                                                      device::advance(b, k * B2::step_bytes), true);
      }
      device::wgmma_commit();
      if (step + 1 == steps) queued();
      device::wgmma_wait<0>();
#pragma unroll
      for (auto& part : bits) device::wgmma_touch(part);
      ring.give_back(at.stage);
      at.next();
    }
    as_floats<C>(sums, bits);
  }
};

}  // namespace aisp::gemm
