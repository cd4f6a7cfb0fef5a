// SPDX-License-Identifier: Apache-2.0
// The rows of one step, each a token of a sequence. Everything that changes from step to step lies in device memory, so that a
// graph of a step is captured once.
#pragma once
#include <cuda_bf16.h>

namespace aisp::decoder {

using bf16 = __nv_bfloat16;

// Rows of one sequence whose positions follow one another; none: `rows` is 0.
struct RowBlock {
  int first, rows;
};

struct Batch {
  int rows = 0;              // of the step, those of padding included
  int* tokens = nullptr;     // [row]
  int* sequences = nullptr;  // [row]: whose cache; -1 of padding, which is computed and kept nowhere
  int* positions = nullptr;  // [row]
  // Of attention: blocks of at most 16 rows times heads of a group, and of at most 64. The longest come first.
  const RowBlock *short_blocks = nullptr, *long_blocks = nullptr;
  int shorts = 0, longs = 0;
  int most_pieces = 1;               // of the longest context that the step may see, 512 keys each
  bool split_longs = false;          // a block for each piece of the long ones, where they alone do not fill the GPU
  const int* chosen_rows = nullptr;  // rows that a next token is chosen for, each once: the last norm changes them in place
  int chosen = 0;
};

}  // namespace aisp::decoder
