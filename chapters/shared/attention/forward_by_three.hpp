// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "forward.hpp"
#include "forward_by_three.cuh"

namespace aisp::attention {

// A launch of the forward kernel for heads of 64 columns in blocks of 192 rows. Tensors and work are a ForwardPass's; `queries`
// are the rows of a sequence, in an order that counts the blocks of a head (InOrder, LongestFirst, FullBlocksFirst).
template <class Mask, class Keys, class Score, bool log_sum, class Order>
class ForwardByThree {
 public:
  using Work = Forward<Mask, Keys, Score, Order>;

  ForwardByThree(const Tensors& tensors, const Work& given, std::size_t queries) : pass_{tensors, given} {
    pass_.work.order.blocks_of_a_head = static_cast<int>((queries + ByThree::block_rows - 1) / ByThree::block_rows);
  }
  // Launch: of a pair, or what takes the same arguments.
  template <class Launch>
  void run(const Launch& launch) const {
    launch(forward_by_three_kernel<Mask, Keys, Score, log_sum, Order>,
           Grid{pass_.grid().blocks.x, ByThree::threads, sizeof(Shared<ByThree>)}, pass_.maps(), pass_.work);
  }

 private:
  ForwardPass<64, 64, Mask, Keys, Score, log_sum, Order> pass_;
};

}  // namespace aisp::attention
