// SPDX-License-Identifier: Apache-2.0
// Where decoding finds the rows of a head's keys and values, and how the keys of all sequences are cut into pieces for blocks.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>

namespace aisp::attention {

// Rows at equal distances, in elements.
struct ContiguousCache {
  const __nv_bfloat16 *k, *v;
  std::size_t row, head, sequence;
  __device__ __forceinline__ std::size_t at(int of_sequence, int of_head, int of_row) const {
    return of_sequence * sequence + of_head * head + of_row * row;
  }
};

// Row i of a sequence is row i % page_size of page table[sequence * table_stride + i / page_size]. Entries behind a sequence's
// last page are never read.
template <int page_size>
struct PagedCache {
  static_assert((page_size & (page_size - 1)) == 0);
  const __nv_bfloat16 *k, *v;
  std::size_t row, head, page;
  const int* table;
  int table_stride;
  __device__ __forceinline__ std::size_t at(int of_sequence, int of_head, int of_row) const {
    const int entry = table[static_cast<std::size_t>(of_sequence) * table_stride + of_row / page_size];
    return entry * page + of_head * head + of_row % page_size * row;
  }
};

// Keys from `begin` to `end` - 1 of a sequence, which may be none; `slot` is where the result goes.
struct Piece {
  int sequence, begin, end, slot;
};

// Each sequence is cut into `splits` pieces, in multiples of 64 keys. The states of a sequence stand together, in order.
struct FixedSplits {
  const int* lengths;
  int splits;
  __device__ __forceinline__ bool piece(int index, Piece& piece) const {
    const int sequence = index / splits, length = lengths[sequence];
    const int keys = ((length + splits - 1) / splits + 63) / 64 * 64, begin = index % splits * keys;
    piece = {sequence, begin, begin + keys < length ? begin + keys : length, index};
    return true;
  }
  __device__ __forceinline__ int first_state(int sequence) const { return sequence * splits; }
};

// Pieces of about equal length, as list_pieces leaves them.
struct ListedSplits {
  const int* lengths;
  const Piece* list;
  const int* begins;  // of each sequence's pieces in the list, and behind the last one's
  int sequences;
  __device__ __forceinline__ bool piece(int index, Piece& piece) const {
    if (index >= begins[sequences]) return false;
    piece = list[index];
    return true;
  }
  __device__ __forceinline__ int first_state(int sequence) const { return begins[sequence]; }
};

// By one block of list_pieces_threads: so long pieces that there are about `wanted`; at most wanted + sequences.
constexpr int list_pieces_threads = 256;
static __global__ __launch_bounds__(list_pieces_threads) void list_pieces(const int* lengths, int sequences, int wanted,
                                                                          Piece* list, int* begins) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int* const shared = reinterpret_cast<int*>(memory);  // the length of a piece; then, by sequence, the first of its pieces
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < sequences; i += list_pieces_threads) shared[1 + i] = lengths[i];
  __syncthreads();
  if (t == 0) {
    std::size_t total = 0;
    for (int i = 0; i < sequences; ++i) total += shared[1 + i];
    const int keys = static_cast<int>((total / wanted + 64) / 64 * 64);
    int count = 0;
    for (int i = 0; i < sequences; ++i) {
      const int pieces = shared[1 + i] > 0 ? (shared[1 + i] + keys - 1) / keys : 1;
      begins[i] = shared[1 + i] = count;
      count += pieces;
    }
    begins[sequences] = count;
    shared[0] = keys;
  }
  __syncthreads();
  for (int i = t; i < sequences; i += list_pieces_threads) {
    const int length = lengths[i], keys = shared[0];
    for (int begin = 0, slot = shared[1 + i]; begin == 0 || begin < length; begin += keys, ++slot)
      list[slot] = {i, begin, begin + keys < length ? begin + keys : length, slot};
  }
}
constexpr int list_pieces_shared_bytes(int sequences) { return (1 + sequences) * static_cast<int>(sizeof(int)); }

}  // namespace aisp::attention
