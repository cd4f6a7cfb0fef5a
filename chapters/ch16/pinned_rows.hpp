// SPDX-License-Identifier: Apache-2.0
// A step's rows in memory that the host writes and a single copy brings to the GPU.
#pragma once
#include <algorithm>

#include "decoder/arrange.hpp"

namespace aisp::ch16 {

// In the layout of BatchMemory with room for `room` rows. Tokens are the caller's.
inline void write_rows(int* memory, int room, const decoder::Arranged& from) {
  const decoder::Batch to = decoder::BatchMemory::over(memory, room);
  std::ranges::copy(from.sequences, to.sequences);
  std::ranges::copy(from.positions, to.positions);
  std::ranges::copy(from.chosen_rows, const_cast<int*>(to.chosen_rows));
  std::ranges::copy(from.shorts, const_cast<decoder::RowBlock*>(to.short_blocks));
  std::ranges::copy(from.longs, const_cast<decoder::RowBlock*>(to.long_blocks));
}

}  // namespace aisp::ch16
