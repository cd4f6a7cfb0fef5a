// SPDX-License-Identifier: Apache-2.0
// In which order a persistent grid takes the blocks of rows. Each block of threads begins with the turn of its own number; which
// comes next is a fixed step further, or the next that nobody has taken.
#pragma once
#include <aisp/device/arch.cuh>

namespace aisp::attention {

struct RowBlock {
  int sequence, head, first_row;
};

// Turns that are handed out: `taken` counts them besides the first of each block of threads; zero before and after the kernel.
// Two launches that may run at the same time each need one of their own.
__device__ __forceinline__ int next_turn(unsigned* taken, int turns) {
  const int before = static_cast<int>(atomicAdd(taken, 1u));
  if (before == turns - 1) *taken = 0;  // every block of threads has now asked in vain once
  return static_cast<int>(gridDim.x) + before;
}

// One head after the other: blocks that run together read the same keys.
struct InOrder {
  int blocks_of_a_head, heads, sequences;
  __device__ __forceinline__ int turns() const { return blocks_of_a_head * heads * sequences; }
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    const int head = turn / blocks_of_a_head;
    return {head / heads, head % heads, turn % blocks_of_a_head * block_rows};
  }
  __device__ __forceinline__ int next(int turn) const { return turn + static_cast<int>(gridDim.x); }
};

// For a causal mask, where blocks have more keys the later they stand in their head and what is begun last should be short: the
// longest first. But not of all heads: a head's next block would come when L2 has long lost its keys. So it is the longest of the
// next `together` heads, whose keys and values L2 holds.
struct LongestFirst {
  int blocks_of_a_head, heads, sequences, together;
  unsigned* taken;
  __device__ __forceinline__ int turns() const { return blocks_of_a_head * heads * sequences; }
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    const int first = turn / (together * blocks_of_a_head) * together, rest = heads * sequences - first;
    const int of = rest < together ? rest : together, here = turn - first * blocks_of_a_head, head = first + here % of;
    return {head / heads, head % heads, (blocks_of_a_head - 1 - here / of) * block_rows};
  }
  __device__ __forceinline__ int next(int) const { return next_turn(taken, turns()); }
};

// The same for masks of which nobody knows where in a head the long blocks stand: `by_tiles` has a head's blocks in the order of
// their tiles, the one with the most last.
struct MostTilesFirst : LongestFirst {
  const int* by_tiles;
  __device__ __forceinline__ RowBlock at(int turn, int block_rows) const {
    RowBlock block = LongestFirst::at(turn, block_rows);
    block.first_row = by_tiles[block.first_row / block_rows] * block_rows;
    return block;
  }
};

// As a list in device memory says, of which each entry is for all heads (list_row_blocks in varlen.cuh makes one).
struct Listed {
  const int2* list;  // sequence and first row
  const int* count;
  int heads;
  unsigned* taken;
  __device__ __forceinline__ int turns() const { return *count * heads; }
  __device__ __forceinline__ RowBlock at(int turn, int) const {
    const int2 entry = list[turn / heads];
    return {entry.x, turn % heads, entry.y};
  }
  __device__ __forceinline__ int next(int) const { return next_turn(taken, turns()); }
};

}  // namespace aisp::attention
