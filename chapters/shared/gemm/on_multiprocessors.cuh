// SPDX-License-Identifier: Apache-2.0
// A schedule that leaves some of the GPU to other kernels: its tiles are walked by so many blocks at most. Blocks of an engine's
// kernel stay until the last tile, one on a multiprocessor, so that the others have their multiprocessors to themselves.
#pragma once
#include "schedule.cuh"

namespace aisp::gemm {

// OnMultiprocessors<Bands>{{.band = 8}, 66}: half of an H100. In place of any schedule, those in ranges included. A cluster of
// two takes both or none.
template <class Schedule>
struct OnMultiprocessors : Schedule {
  int multiprocessors = 0;  // 0, or more than the GPU has: all
  int clusters_at_once = 0;

  template <class C>
  __host__ __device__ void fit(const Extent& of) {
    clusters_at_once = multiprocessors == 0 ? 1 << 30 : multiprocessors < C::cluster ? 1 : multiprocessors / C::cluster;
    if constexpr (requires(OnMultiprocessors ranges) { ranges.clusters; })
      if (this->clusters > clusters_at_once) this->clusters = clusters_at_once;
    Schedule::template fit<C>(of);
  }
  // How many blocks there are follows from this, and each goes on until there are no tiles.
  __host__ __device__ int most_tiles() const {
    const int all = Schedule::most_tiles();
    return all < clusters_at_once ? all : clusters_at_once;
  }
};

}  // namespace aisp::gemm
