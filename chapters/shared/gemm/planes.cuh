// SPDX-License-Identifier: Apache-2.0
// Sums that leave the tensor cores every few stages, and factors that are sums of narrower ones (split-bf16, "bf16x2"): planes of
// B whose products all go into the same sums.
#pragma once
#include "epilogue.cuh"
#include "mainloop.cuh"

namespace aisp::gemm {

// The sums of so many stages are added to others in fp32, as Promoted does after each. The rows of a tile of B are `planes` times
// the tile_n / planes columns of C, plane after plane: b[tile][plane][column][k]. Adding up planes costs no register and reads A
// once. The epilogue begins with OfPlanes<planes>.
template <int stages_between, int planes = 1>
struct PromotedEvery {
  static constexpr bool scaled = false;
  static constexpr int arrivals = 1;
  template <int tile_n>
  static constexpr int extra_sums = planes == 1 ? tile_n / 2 : 0;

  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    constexpr int columns = C::tile_n / planes;
    static_assert(C::parts == 1 && C::tile_n % planes == 0 && columns % 8 == 0, "a consumer has 64 rows, a plane whole wgmmas");
    float products[columns / 2];
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) sums[0][i] = 0;
    const int steps = C::steps(tile);
    for (int step = 0; step < steps;) {
      const int first = step, end = min(step + stages_between, steps);
      int previous = -1;
      for (; step < end; ++step) {
        device::barrier_wait(&ring.full[at.stage], at.phase);
        device::wgmma_touch(products);
        device::wgmma_fence();
#pragma unroll
        for (int plane = 0; plane < planes; ++plane)
          multiply_stage(ring, at.stage, first_row, plane * columns, products, step > first || plane > 0);
        device::wgmma_commit();
        device::wgmma_wait<1>();
        if (previous >= 0) ring.give_back(previous);
        previous = at.stage;
        at.next();
      }
      if (end == steps) queued();
      device::wgmma_wait<0>();
      device::wgmma_touch(products);
      ring.give_back(previous);
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) sums[0][i] += products[i];
    }
  }
};

// The planes' sums are added up already: C has a column for `planes` of B's rows.
template <int planes>
struct OfPlanes {
  static constexpr int narrowing = planes;
  template <int count>
  __device__ __forceinline__ void operator()(float (&)[count], const Fragment&) const {}
};

}  // namespace aisp::gemm
