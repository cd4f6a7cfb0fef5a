// SPDX-License-Identifier: Apache-2.0
// The places of a head's keys and values for decoding, and the division of all sequences' keys into pieces for blocks.
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

// Row i of a sequence is row i % page_size of page table[sequence * table_stride + i / page_size]. Entries after a sequence's
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

// The same pieces for a decode_kernel that needs no merge_states after it: the warp that is the last to store a piece of a row
// merges that row.
template <class Splits, class Out>
struct MergedByLast : Splits {
  unsigned* tickets;       // [sequence][query][head]: 0 before a launch, and again after it
  Out* merged;             // [sequence][query][head][head_size]
  float* merged_log_sums;  // [sequence][query][head], natural; or null
};

// Pieces of about equal length, as list_pieces leaves them: in the order in which they are to begin.
struct ListedSplits {
  const int* lengths;
  const Piece* list;
  const int* begins;  // of each sequence's pieces in the list, and after the last one's
  int sequences;
  __device__ __forceinline__ bool piece(int index, Piece& piece) const {
    if (index >= begins[sequences]) return false;
    piece = list[index];
    return true;
  }
  __device__ __forceinline__ int first_state(int sequence) const { return begins[sequence]; }
};

// By one block of list_pieces_threads: so long pieces that there are about `wanted`; at most wanted + sequences. Long ones come
// first, so that what is begun last is short; what is about equally long stands in no particular order.
constexpr int list_pieces_threads = 256, list_pieces_buckets = 32;
static __global__ __launch_bounds__(list_pieces_threads) void list_pieces(const int* lengths, int sequences, int wanted,
                                                                          Piece* list, int* begins) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int warps = list_pieces_threads / 32;
  int* const places = reinterpret_cast<int*>(memory);  // where the next piece of about some length goes
  int* const sums = places + list_pieces_buckets;      // of warps
  int* const first_pieces = sums + warps;              // of sequences
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const auto inclusive = [&](int own) {  // the sum over the lanes up to this one
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, own, step);
      if (lane >= step) own += other;
    }
    return own;
  };
  const auto before = [&](int own, int& all) {  // the sum over the threads before this one
    const int up_to = inclusive(own);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();
    int sum = up_to - own;
    all = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) sum += sums[w];
      all += sums[w];
    }
    __syncthreads();
    return sum;
  };
  // A thread has some neighbours; a sequence without keys has a piece, too.
  const int of_thread = (sequences + list_pieces_threads - 1) / list_pieces_threads, first = t * of_thread;
  const int end = first + of_thread < sequences ? first + of_thread : sequences;
  int own = 0, total, count;
  for (int i = first; i < end; ++i) own += lengths[i];
  if (t < list_pieces_buckets) places[t] = 0;
  before(own, total);
  const int keys = (total / wanted + 64) / 64 * 64;
  const auto pieces_of = [&](int length) { return length > 0 ? (length + keys - 1) / keys : 1; };
  const auto bucket_of = [&](int length) {
    return list_pieces_buckets - 1 - static_cast<int>(static_cast<long long>(length) * (list_pieces_buckets - 1) / keys);
  };
  own = 0;
  for (int i = first; i < end; ++i) {
    const int length = lengths[i], pieces = pieces_of(length);
    own += pieces;
    atomicAdd(&places[0], pieces - 1);
    atomicAdd(&places[bucket_of(length - (pieces - 1) * keys)], 1);
  }
  int piece = before(own, count);
  for (int i = first; i < end; ++i) {
    begins[i] = first_pieces[i] = piece;
    piece += pieces_of(lengths[i]);
  }
  if (t == 0) begins[sequences] = count;
  if (warp == 0) places[lane] = inclusive(places[lane]) - places[lane];
  __syncthreads();
  for (int slot = t; slot < count; slot += list_pieces_threads) {
    int sequence = 0;  // the last one whose pieces begin at or before this one
    for (int behind = sequences; behind - sequence > 1;) {
      const int middle = (sequence + behind) / 2;
      (first_pieces[middle] <= slot ? sequence : behind) = middle;
    }
    const int length = lengths[sequence], begin = (slot - first_pieces[sequence]) * keys;
    const int piece_end = begin + keys < length ? begin + keys : length;
    list[atomicAdd(&places[bucket_of(piece_end - begin)], 1)] = {sequence, begin, piece_end, slot};
  }
}
constexpr int list_pieces_shared_bytes(int sequences) {
  return (list_pieces_buckets + list_pieces_threads / 32 + sequences) * static_cast<int>(sizeof(int));
}

}  // namespace aisp::attention
