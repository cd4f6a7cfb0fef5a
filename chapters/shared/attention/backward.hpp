// SPDX-License-Identifier: Apache-2.0
// The host's side of the backward kernels: tensor maps, scratch and grids.
#pragma once
#include <cstddef>

#include "backward.cuh"
#include "forward.hpp"

namespace aisp::attention {

struct BackwardTensors {
  Tensor q, k, v, o, d_o, d_q, d_k, d_v;
};

// How many elements each part of the scratch has.
struct BackwardScratch {
  std::size_t rows, d_q_sums, added;
};
inline BackwardScratch backward_scratch(std::size_t queries, std::size_t heads, std::size_t sequences, std::size_t head_size) {
  const std::size_t tiles = (queries + 63) / 64 * heads * sequences;
  return {tiles * 64, tiles * 64 * head_size, tiles * (head_size / 64)};
}

// Keys are Dense; in_order: equal inputs give equal bits. `given` has mask, lengths, scale, log_sums and scratch.
template <int head_size, class Mask, bool in_order, class Blocks = HeadsInTurn, bool staged = true>
class BackwardPass {
 public:
  using Work = Backward<Mask>;

  BackwardPass(const BackwardTensors& t, const Work& given)
      : work{given}, maps_{map_of(t.q, head_size, 64),   map_of(t.k, head_size, tile_keys), map_of(t.v, head_size, tile_keys),
                           map_of(t.d_o, head_size, 64), map_of(t.d_k, head_size, 64),      map_of(t.d_v, head_size, 64)} {
    refuse_unless(in_groups(t.q.heads, t.k.heads), uneven_groups(t.q.heads, t.k.heads));
    refuse_unless(t.v.heads == t.k.heads, other_heads("V", t.v.heads, "K", t.k.heads));
    refuse_unless(t.d_q.heads == t.q.heads, other_heads("dQ", t.d_q.heads, "Q", t.q.heads));
    refuse_unless(t.d_k.heads == t.k.heads, other_heads("dK", t.d_k.heads, "K", t.k.heads));
    work.heads = static_cast<int>(t.q.heads), work.kv_heads = static_cast<int>(t.k.heads);
    work.sequences = static_cast<int>(t.q.sequences);
    work.o = t.o.data, work.o_strides = t.o.strides;
    work.d_o = t.d_o.data, work.d_o_strides = t.d_o.strides;
    work.d_q = const_cast<bf16*>(t.d_q.data), work.d_q_strides = t.d_q.strides;
  }
  // Launch: of a pair, or what takes the same arguments.
  template <class Launch>
  void run(const Launch& launch) const {
    launch(backward_begin<head_size, Mask>, rows_grid(), work);
    launch(backward_kernel<head_size, Mask, in_order, Blocks, staged>,
           Grid{blocks(), forward_threads, sizeof(BackwardShared<BackwardShape<head_size>>)}, maps_, work);
    launch(backward_end<head_size, Mask>, rows_grid(), work);
  }
  // Return the grid of the kernels before and after, and the blocks of the one between, for a kernel of a pair's own.
  Grid rows_grid() const {
    return {
        dim3{static_cast<unsigned>(work.row_tiles()), static_cast<unsigned>(work.heads), static_cast<unsigned>(work.sequences)},
        backward_side_threads};
  }
  unsigned blocks() const { return static_cast<unsigned>(work.key_tiles() * work.kv_heads * work.sequences); }

  Work work;

 private:
  BackwardMaps maps_;
};

}  // namespace aisp::attention
