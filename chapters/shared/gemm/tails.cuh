// SPDX-License-Identifier: Apache-2.0
// A main loop for tiles of which groups use a part: tails of 64 rows among tiles of 128.
#pragma once
#include "mainloop.cuh"

namespace aisp::gemm {

// A consumer that has none of the group's rows multiplies nothing, which leaves the tensor cores to the other one: a tail takes
// as long as a tile of its own height, in steps of 64 rows. It gives its stages back as they come. In a cluster that shares B the
// fuller block decides, so that nothing is gained there.
struct TailsInTensorCores : InTensorCores {
  template <class C, class Queued>
  __device__ __forceinline__ void multiply(Ring<C>& ring, Cursor<C>& at, const Tile& tile, int first_row,
                                           float (&sums)[C::parts][C::tile_n / 2], const Queued& queued) const {
    static_assert(!C::pingpong && C::parts == 1, "a consumer has 64 rows of a tile that it shares with others");
    if (tile.m + first_row < tile.m_end) {
      InTensorCores::multiply<C>(ring, at, tile, first_row, sums, queued);
      return;
    }
    for (int step = C::steps(tile); step > 0; --step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
      ring.give_back(at.stage);
      at.next();
    }
  }
};

}  // namespace aisp::gemm
