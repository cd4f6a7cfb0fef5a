// SPDX-License-Identifier: Apache-2.0
// The forward kernel for heads of 64 columns with three warpgroups a block instead of two: their exponentials take as long as
// their products, so that two warpgroups leave both units waiting. Wider heads have no registers for a third.
#pragma once
#include "forward.cuh"

namespace aisp::attention {

struct ByThree : Shape<64, 64> {
  static constexpr int consumers = 3, block_rows = consumers * query_rows, threads = (1 + consumers) * warpgroup;
  static constexpr bool queries_in_registers = false;
};

// Without a mask blocks take equally long, but for the last of a head if its last rows leave warpgroups without any. Such short
// ones come when all heads' full ones have been begun: they fill the SMs that have no further full one.
struct FullBlocksFirst : InOrder {
  int queries;
  unsigned* taken;
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    const int full = queries / block_rows, all_full = full * heads * sequences;
    const int head = turn < all_full ? turn / full : turn - all_full, block = turn < all_full ? turn % full : full;
    return {head / heads, head % heads, block * block_rows};
  }
  __device__ __forceinline__ int next(int) const { return next_turn(taken, turns()); }
};

template <class Mask, class Keys, class Score, bool log_sum, class Order>
__global__ __launch_bounds__(ByThree::threads,
                             1) void forward_by_three_kernel(const __grid_constant__ Maps maps,
                                                             const __grid_constant__ Forward<Mask, Keys, Score, Order> work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<ByThree>& shared = *reinterpret_cast<Shared<ByThree>*>(memory);
  initialize(shared);
  if (threadIdx.x < warpgroup) {
    device::give_up_registers<32>();
    if (threadIdx.x < 32) produce(shared, maps, work);
  } else {
    device::take_registers<160>();
    consume<ByThree, Forward<Mask, Keys, Score, Order>, log_sum>(shared, maps, work);
  }
}

}  // namespace aisp::attention
