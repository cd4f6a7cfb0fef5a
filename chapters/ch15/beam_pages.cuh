// SPDX-License-Identifier: Apache-2.0
// Caches of beams, in pages and in slots: the kernels of a reorder, of new rows, and of attention over pages that beams share.
#pragma once
#include "attention/decode.hpp"
#include "beam_search.hpp"

namespace aisp::ch15 {

using namespace attention;

constexpr int layers = 2, kv_heads = 8, group = 4, heads = kv_heads * group, head_size = 128;
constexpr int splits = 4, shared_splits = 8;
constexpr int row_packets = head_size / 8, page_packets = kv_heads * page_rows * row_packets;
constexpr std::size_t page_elements = std::size_t{page_packets} * 8;
constexpr unsigned threads = 256;

using Pages = PagedCache<page_rows>;

// The block tables of all beams before and after a reorder, and the pages: `free` is a ring, of which counters[0] pages have been
// taken and counters[1] given back. It always has more pages than a reorder takes, so that takers and givers do not meet.
struct Tables {
  const int* from;
  int *to, *holders, *free, *counters;
  int* copied;        // [beam]: the page whose rows its last page takes over; -1
  int* shared_pages;  // [packed beams]: how many pages they all have in common, from the first on
  int pages, stride, beams, packed;

  __device__ int take() const {
    const int page = free[atomicAdd(&counters[0], 1) % pages];
    holders[page] = 1;
    return page;
  }
  __device__ void release(int page) const {
    if (atomicSub(&holders[page], 1) == 1) free[atomicAdd(&counters[1], 1) % pages] = page;
  }
};
// A block to each request. Afterwards each beam has a last page of its own that takes the token at `lengths[beam] - 1`.
static __global__ void reorder_kernel(Tables tables, const int* parents, const int* lengths) {
  const int first_beam = static_cast<int>(blockIdx.x) * tables.beams, length = lengths[first_beam] - 1;
  const int count = (length + page_rows - 1) / page_rows, all = tables.beams * count;
  const auto entry = [&](int beam, int page) { return (first_beam + beam) * tables.stride + page; };
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int beam = i / count, page = tables.from[entry(parents[first_beam + beam], i % count)];
    tables.to[entry(beam, i % count)] = page;
    if (page != tables.from[entry(beam, i % count)]) atomicAdd(&tables.holders[page], 1);
  }
  __syncthreads();  // what is both left and taken over is not given back in between
  for (int i = static_cast<int>(threadIdx.x); i < all; i += static_cast<int>(blockDim.x)) {
    const int own = entry(i / count, i % count);
    if (tables.from[own] != tables.to[own]) tables.release(tables.from[own]);
  }
  __syncthreads();
  if (const int beam = static_cast<int>(threadIdx.x); beam < tables.beams) {
    int& last = tables.to[entry(beam, length / page_rows)];
    int copied = -1;
    if (length % page_rows == 0) last = tables.take();
    else if (atomicSub(&tables.holders[last], 1) > 1) {
      copied = last;
      last = tables.take();
    } else atomicAdd(&tables.holders[last], 1);  // the last of those that hold it writes into it
    tables.copied[first_beam + beam] = copied;
  }
  const int packs = tables.beams / tables.packed, last_page = length / page_rows;
  __shared__ int same[most_beams / 2];  // pages that packed beams have in common
  if (static_cast<int>(threadIdx.x) < packs) same[threadIdx.x] = last_page;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < packs * last_page; i += static_cast<int>(blockDim.x)) {
    const int first = i / last_page * tables.packed, page = i % last_page;
    bool is_same = true;
    for (int beam = 1; beam < tables.packed; ++beam)
      is_same = is_same && tables.to[entry(first + beam, page)] == tables.to[entry(first, page)];
    if (!is_same) atomicMin(&same[i / last_page], page);
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < packs) tables.shared_pages[first_beam / tables.packed + threadIdx.x] = same[threadIdx.x];
}

// Rows of one kind, keys or values, in a layer: blockIdx.x is the beam, blockIdx.y twice the layer and 1 for values.
struct Rows16 {
  uint4 *k, *v;
  __device__ uint4* of(unsigned kind) const { return kind % 2 == 0 ? k : v; }
};
struct NewRows {
  const uint4 *k, *v;  // [layer][beam][head][head_size] of the step
  __device__ const uint4* of(unsigned kind, unsigned beams) const {
    return (kind % 2 == 0 ? k : v) + (std::size_t{kind / 2} * beams + blockIdx.x) * kv_heads * row_packets;
  }
};
static __global__ __launch_bounds__(threads) void append_to_pages_kernel(Tables tables, NewRows rows, Rows16 pool,
                                                                         const int* lengths) {
  const int beam = static_cast<int>(blockIdx.x), position = lengths[beam] - 1, own_row = position % page_rows;
  uint4* const layer = pool.of(blockIdx.y) + std::size_t{blockIdx.y / 2} * tables.pages * page_packets;
  uint4* const page = layer + static_cast<std::size_t>(tables.to[beam * tables.stride + position / page_rows]) * page_packets;
  const uint4* const own = rows.of(blockIdx.y, gridDim.x);
  const int copied = tables.copied[beam];
  for (int i = static_cast<int>(threadIdx.x); i < page_packets; i += static_cast<int>(threads)) {
    const int row = i / row_packets % page_rows;
    if (row == own_row) page[i] = own[i / row_packets / page_rows * row_packets + i % row_packets];
    else if (row < own_row && copied >= 0) page[i] = layer[static_cast<std::size_t>(copied) * page_packets + i];
  }
}

// Slots of `capacity` rows: [layer][beam][head][row][head_size].
__device__ __forceinline__ std::size_t slot_packet(unsigned layer, unsigned beams, unsigned beam, unsigned head, int capacity) {
  return ((std::size_t{layer} * beams + beam) * kv_heads + head) * static_cast<std::size_t>(capacity) * row_packets;
}
static __global__ __launch_bounds__(threads) void append_to_slots_kernel(NewRows rows, Rows16 slots, int capacity,
                                                                         const int* lengths) {
  const uint4* const own = rows.of(blockIdx.y, gridDim.x);
  for (unsigned i = threadIdx.x; i < kv_heads * row_packets; i += threads)
    slots.of(blockIdx.y)[slot_packet(blockIdx.y / 2, gridDim.x, blockIdx.x, i / row_packets, capacity) +
                         static_cast<std::size_t>(lengths[blockIdx.x] - 1) * row_packets + i % row_packets] = own[i];
}
// Each beam's rows from `first` on, of its parent. blockIdx: rows, 64 each; the head and the kind; the beam.
constexpr int select_rows = 64, select_packets = select_rows * row_packets / static_cast<int>(threads);
static __global__ __launch_bounds__(threads) void select_kernel(Rows16 from, Rows16 to, const int* parents, const int* lengths,
                                                                int first, int beams, int capacity) {
  const unsigned head = blockIdx.y % kv_heads, kind = blockIdx.y / kv_heads, beam = blockIdx.z, all = gridDim.z;
  const unsigned parent = beam / beams * beams + static_cast<unsigned>(parents[beam]);
  const int begin = (first + static_cast<int>(blockIdx.x) * select_rows) * row_packets, end = (lengths[beam] - 1) * row_packets;
  const uint4* const source = from.of(kind) + slot_packet(kind / 2, all, parent, head, capacity);
  uint4* const target = to.of(kind) + slot_packet(kind / 2, all, beam, head, capacity);
  uint4 kept[select_packets];
#pragma unroll
  for (int i = 0; i < select_packets; ++i) {
    const int at = begin + static_cast<int>(threadIdx.x + i * threads);
    if (at < end) kept[i] = __ldcs(source + at);
  }
#pragma unroll
  for (int i = 0; i < select_packets; ++i) {
    const int at = begin + static_cast<int>(threadIdx.x + i * threads);
    if (at < end) __stcs(target + at, kept[i]);
  }
}
// Before a run: the first rows of each beam from its pages. blockIdx: the row, the kind, the beam.
static __global__ void unfold_kernel(const uint4* k, const uint4* v, const int* table, int pages, int stride, Rows16 slots,
                                     const int* lengths, int most, int capacity) {
  const int row = static_cast<int>(blockIdx.x), beam = static_cast<int>(blockIdx.z);
  if (row >= min(lengths[beam] - 1, most)) return;
  const std::size_t page = static_cast<std::size_t>(table[beam * stride + row / page_rows]);
  const uint4* const from = (blockIdx.y % 2 == 0 ? k : v) + (std::size_t{blockIdx.y / 2} * pages + page) * page_packets;
  for (unsigned i = threadIdx.x; i < kv_heads * row_packets; i += blockDim.x)
    slots.of(blockIdx.y)[slot_packet(blockIdx.y / 2, gridDim.z, blockIdx.z, i / row_packets, capacity) +
                         static_cast<std::size_t>(row) * row_packets + i % row_packets] =
        from[(i / row_packets * page_rows + row % page_rows) * row_packets + i % row_packets];
}

// Reads once, in pieces, the keys that packed beams share; those after them are read by each beam for itself. blockIdx.y: these
// pieces, then the beams.
struct EachKey {
  __device__ int operator[](int) const { return 1 << 30; }  // all query rows see all keys of the piece
};
struct SharedPieces {
  EachKey lengths;
};
struct OwnPieces {
  const int *lengths, *shared_pages;
};
template <int packed>
__global__ __launch_bounds__(decode_threads, 2) void packed_kernel(const __grid_constant__ Decode<Pages, OwnPieces, float> work,
                                                                   int beams) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int packs = beams / packed, shared_blocks = packs * shared_splits, block = static_cast<int>(blockIdx.y),
            kv_head = static_cast<int>(blockIdx.x);
  if (block < shared_blocks) {
    const int pack = block % packs, split = block / packs, keys = work.splits.shared_pages[pack] * page_rows;
    const int of_split = (keys + shared_splits * page_rows - 1) / (shared_splits * page_rows) * page_rows;
    Decode<Pages, SharedPieces, float> of_pack{work.q, work.cache, {}, work.heads, work.scale_log2, work.o, work.log_sums};
    of_pack.cache.table_stride *= packed;  // the sequence is the pack, whose table is that of its first beam
    decode_block<head_size, group, packed>(of_pack, kv_head,
                                           {pack, min(split * of_split, keys), min((split + 1) * of_split, keys), block}, memory);
  } else {
    const int beam = block - shared_blocks, keys = work.splits.shared_pages[beam / packed] * page_rows;
    decode_block<head_size, group, 1>(work, kv_head, {beam, keys, work.splits.lengths[beam], shared_splits * beams + beam},
                                      memory);
  }
}

}  // namespace aisp::ch15
