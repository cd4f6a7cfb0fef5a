// SPDX-License-Identifier: Apache-2.0
// The places of a sequence's rows, in the coordinates of maps of four dimensions (column, row, head, sequence). A head's keys are
// read in boxes of `box_rows` rows.
//
// clips: memory after a sequence's last row is outside of the tensor for TMA, so that it is read as zeros and never written.
// Otherwise it may belong to another sequence or hold NaN: values are cleared before they are multiplied by a weight of 0.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace aisp::attention {

constexpr int tile_keys = 128;

struct Lengths {
  int queries, keys;  // of one sequence
};

struct Place {
  int row, sequence;
};

// All sequences have the same lengths.
struct Dense {
  int queries, keys;

  static constexpr int box_rows = tile_keys;
  static constexpr bool clips_queries = true, clips_keys = true;
  __device__ __forceinline__ Lengths lengths(int) const { return {queries, keys}; }
  __device__ __forceinline__ Place query(int sequence, int row) const { return {row, sequence}; }
  __device__ __forceinline__ Place key(int sequence, int row) const { return {row, sequence}; }
};

// Sequences lie at equal distances, but of the keys only the first `key_lengths[sequence]` count.
struct Padded {
  int queries;
  const int* key_lengths;

  static constexpr int box_rows = tile_keys;
  static constexpr bool clips_queries = true, clips_keys = false;
  __device__ __forceinline__ Lengths lengths(int sequence) const { return {queries, key_lengths[sequence]}; }
  __device__ __forceinline__ Place query(int sequence, int row) const { return {row, sequence}; }
  __device__ __forceinline__ Place key(int sequence, int row) const { return {row, sequence}; }
};

// Sequences lie one after the other: sequence i has the rows from begins[i] to begins[i + 1] - 1. Maps have one sequence.
struct Varlen {
  const int *query_begins, *key_begins;

  static constexpr int box_rows = tile_keys;
  static constexpr bool clips_queries = false, clips_keys = false;
  __device__ __forceinline__ Lengths lengths(int sequence) const {
    return {query_begins[sequence + 1] - query_begins[sequence], key_begins[sequence + 1] - key_begins[sequence]};
  }
  __device__ __forceinline__ Place query(int sequence, int row) const { return {query_begins[sequence] + row, 0}; }
  __device__ __forceinline__ Place key(int sequence, int row) const { return {key_begins[sequence] + row, 0}; }
};

// Queries as in Varlen. Keys lie in pages: key i of a sequence is row i % page_size of page table[sequence * table_stride + i /
// page_size]. Entries of the table after a sequence's last page are never read. Maps of keys have a page for a sequence.
template <int page_size>
struct Paged {
  static_assert(page_size >= 8 && (page_size & (page_size - 1)) == 0, "groups of eight rows are swizzled together");
  const int *query_begins, *key_lengths, *table;
  int table_stride;

  static constexpr int box_rows = page_size < tile_keys ? page_size : tile_keys;
  static constexpr bool clips_queries = false, clips_keys = false;
  __device__ __forceinline__ Lengths lengths(int sequence) const {
    return {query_begins[sequence + 1] - query_begins[sequence], key_lengths[sequence]};
  }
  __device__ __forceinline__ Place query(int sequence, int row) const { return {query_begins[sequence] + row, 0}; }
  __device__ __forceinline__ Place key(int sequence, int row) const {
    const std::size_t entry = static_cast<std::size_t>(sequence) * table_stride + row / page_size;
    return {row % page_size, table[entry]};
  }
};

}  // namespace aisp::attention
