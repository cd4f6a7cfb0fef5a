// SPDX-License-Identifier: Apache-2.0
// The host's side of the forward kernel: tensor maps, shared memory and the grid. README.md shows a pair that uses it.
#pragma once
#include <aisp/device_attribute.hpp>
#include <aisp/launch.hpp>
#include <aisp/tensor_map.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arguments.hpp"
#include "forward.cuh"

namespace aisp::attention {

// Q, K, V or O in bf16: any strides that are multiples of 8 elements, so that a part of a packed tensor is one, too. Of packed
// sequences there is one of all rows; of pages as many sequences as pages.
struct Tensor {
  const bf16* data;
  std::size_t rows, heads, sequences;
  Strides strides;
};

// [sequence][head][row][columns], one element after the other.
inline Tensor heads_first(const bf16* data, std::size_t sequences, std::size_t heads, std::size_t rows, std::size_t columns) {
  return {data, rows, heads, sequences, {columns, rows * columns, heads * rows * columns}};
}
// [sequence][row][head][columns]; of a packed tensor, in which a row has further heads, `row_heads` of them in all.
inline Tensor rows_first(const bf16* data, std::size_t sequences, std::size_t rows, std::size_t heads, std::size_t columns,
                         std::size_t row_heads = 0) {
  const std::size_t row = (row_heads > 0 ? row_heads : heads) * columns;
  return {data, rows, heads, sequences, {row, columns, rows * row}};
}

// Boxes of 64 columns.
inline CUtensorMap map_of(const Tensor& tensor, std::size_t columns, unsigned box_rows) {
  refuse_unless(tensor.strides.row % 8 == 0 && tensor.strides.head % 8 == 0 && tensor.strides.sequence % 8 == 0,
                "rows, heads and sequences must lie multiples of 8 elements apart, not " + std::to_string(tensor.strides.row) +
                    ", " + std::to_string(tensor.strides.head) + " and " + std::to_string(tensor.strides.sequence));
  const std::uint64_t sizes[] = {columns, tensor.rows, tensor.heads, tensor.sequences};
  const std::uint64_t strides[] = {tensor.strides.row * sizeof(bf16), tensor.strides.head * sizeof(bf16),
                                   tensor.strides.sequence * sizeof(bf16)};
  const std::uint32_t box[] = {64, box_rows, 1, 1};
  return tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, tensor.data, sizes, strides, box);
}

struct Tensors {
  Tensor q, k, v, o;
};

// As many heads together as have 16 MiB of keys and values, counted in query heads.
inline LongestFirst longest_first(std::size_t queries, std::size_t keys, std::size_t columns, std::size_t heads, int group,
                                  std::size_t sequences, unsigned* taken) {
  constexpr std::size_t in_l2 = std::size_t{16} << 20;
  const std::size_t kv_heads = std::max<std::size_t>(in_l2 / std::max<std::size_t>(keys * columns * sizeof(bf16), 1), 1);
  return {static_cast<int>((queries + 127) / 128), static_cast<int>(heads), static_cast<int>(sequences),
          static_cast<int>(std::min(kv_heads * group, heads * sequences)), taken};
}
inline InOrder in_order(std::size_t queries, std::size_t heads, std::size_t sequences) {
  return {static_cast<int>((queries + 127) / 128), static_cast<int>(heads), static_cast<int>(sequences)};
}

// A launch of the forward kernel. `work` may be changed between runs.
template <int head_size, int value_size, class Mask, class Keys, class Score, bool log_sum, class Order>
class ForwardPass {
 public:
  using Work = Forward<Mask, Keys, Score, Order>;
  using Block = Shared<Shape<head_size, value_size>>;

  ForwardPass(const Tensors& tensors, const Work& given)
      : work{given},
        maps_{map_of(tensors.q, head_size, Shape<head_size, value_size>::query_rows),
              map_of(tensors.k, head_size, Keys::box_rows), map_of(tensors.v, value_size, Keys::box_rows),
              map_of(tensors.o, value_size, Shape<head_size, value_size>::query_rows)} {
    refuse_unless(in_groups(tensors.q.heads, tensors.k.heads), uneven_groups(tensors.q.heads, tensors.k.heads));
    refuse_unless(tensors.v.heads == tensors.k.heads, other_heads("V", tensors.v.heads, "K", tensors.k.heads));
    refuse_unless(tensors.o.heads == tensors.q.heads, other_heads("O", tensors.o.heads, "Q", tensors.q.heads));
    work.o = const_cast<bf16*>(tensors.o.data);
    work.o_strides = tensors.o.strides;
    work.group = static_cast<int>(tensors.q.heads / tensors.k.heads);
  }
  // Launch: of a pair, or what takes the same arguments.
  template <class Launch>
  void run(const Launch& launch) const {
    run(launch, grid().blocks.x);
  }
  // With another number of blocks of threads than there are SMs: one for each turn, for example.
  template <class Launch>
  void run(const Launch& launch, unsigned blocks) const {
    launch(forward_kernel<head_size, value_size, Mask, Keys, Score, log_sum, Order>, Grid{blocks, forward_threads, sizeof(Block)},
           maps_, work);
  }
  // For a kernel with these parameters that was compiled at run time: launch(kernel, pass.grid(), pass.maps(), pass.work).
  Grid grid() const { return {blocks(work.order), forward_threads, sizeof(Block)}; }
  const Maps& maps() const { return maps_; }

  Work work;

 private:
  static unsigned blocks(const Listed&) { return multiprocessors(); }
  template <class Known>
  static unsigned blocks(const Known& order) {
    return std::min(static_cast<unsigned>(order.blocks_of_a_head * order.heads * order.sequences), multiprocessors());
  }
  Maps maps_;
};

}  // namespace aisp::attention
