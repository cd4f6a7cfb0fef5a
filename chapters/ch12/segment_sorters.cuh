// SPDX-License-Identifier: Apache-2.0
// Sorters and mergers of parts of segments of key-value pairs: a few lanes, a block in shared memory, and blocks that merge
// sorted runs. All are stable. And keys that name their segments, for a sort of everything at once.
#pragma once
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cuda/std/utility>

#include <cstdint>

namespace aisp::ch12::segments {

using Word = std::uint32_t;

struct Pairs {
  Word *keys, *values;
};

// Bitonic sort of up to width * items pairs by `width` lanes, in registers. Keys are unique with their places in the segment
// after them, so that equal ones keep their order; what fills up comes last. `memory`: width * (items + 1) words.
template <int width, int items>
__device__ void sort_by_lanes(std::uint64_t* memory, const Pairs& in, const Pairs& out, int begin, int length) {
  const int lane = static_cast<int>(threadIdx.x) % width;
  std::uint64_t key[items];
#pragma unroll
  for (int j = 0; j < items; ++j) {
    const int place = j * width + lane;
    key[j] = place < length ? std::uint64_t{in.keys[begin + place]} << 32 | static_cast<unsigned>(place) : ~0ull;
  }
#pragma unroll
  for (int run = 2; run <= width * items; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int j = 0; j < items; ++j) {
        const bool ascends = ((lane * items + j) & run) == 0;
        if (distance >= items) {
          const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFF, key[j], distance / items);
          const bool takes_less = ascends == ((lane & (distance / items)) == 0);
          if (takes_less == (other < key[j])) key[j] = other;
        } else if ((j & distance) == 0 && (key[j] > key[j | distance]) == ascends) {
          cuda::std::swap(key[j], key[j | distance]);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < items; ++j) memory[lane * (items + 1) + j] = key[j];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < items; ++j) {
    const int place = j * width + lane;
    if (place >= length) continue;
    const std::uint64_t sorted = memory[place + place / items];
    out.keys[begin + place] = static_cast<Word>(sorted >> 32);
    out.values[begin + place] = in.values[begin + static_cast<int>(sorted & 0xFFFFFFFF)];
  }
  __syncwarp();
}

// Radix sort in shared memory of up to threads * items pairs. It is stable, and what fills up comes last among equal keys.
template <int threads, int items>
struct BlockSort {
  using Load = cub::BlockLoad<Word, threads, items, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<Word, threads, items, Word>;
  union Memory {
    typename Load::TempStorage load;
    typename Sort::TempStorage sort;
  };
  static __device__ void run(Memory& memory, const Pairs& in, const Pairs& out, int begin, int length) {
    Word keys[items], values[items];
    Load(memory.load).Load(in.keys + begin, keys, length, ~Word{0});
    __syncthreads();
    Load(memory.load).Load(in.values + begin, values, length, Word{0});
    __syncthreads();
    Sort(memory.sort).SortBlockedToStriped(keys, values);
#pragma unroll
    for (int i = 0; i < items; ++i) {
      const int place = i * threads + static_cast<int>(threadIdx.x);
      if (place >= length) break;
      out.keys[begin + place] = keys[i];
      out.values[begin + place] = values[i];
    }
    __syncthreads();
  }
};

constexpr int merge_threads = 512, merge_items = 8, merge_tile = merge_threads * merge_items;

// How many of the first `diagonal` pairs of the merge come from `a`; of equal keys those of `a` come first.
inline __device__ int from_a(const Word* a, int a_length, const Word* b, int b_length, int diagonal) {
  int low = max(diagonal - b_length, 0), high = min(diagonal, a_length);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a[middle] <= b[diagonal - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

struct MergeMemory {
  Word keys[merge_tile], values[merge_tile];
  int corner[2];
};

// Merges neighbouring runs of `run` pairs, the last of which may be shorter: the merge_tile of the segment's pairs that come to
// lie at `place` and after it.
inline __device__ void merge_part(MergeMemory& memory, const Pairs& in, const Pairs& out, int begin, int length, int run,
                                  int place) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first = place / (2 * run) * (2 * run);  // of both runs
  const int a_length = min(run, length - first), b_length = min(run, length - first - a_length);
  const Word *const a = in.keys + begin + first, *const b = a + a_length;
  const int from = place - first, count = min(merge_tile, length - place);
  if (thread < 2) memory.corner[thread] = from_a(a, a_length, b, b_length, from + (thread == 0 ? 0 : count));
  __syncthreads();
  const int a_begin = memory.corner[0], of_a = memory.corner[1] - a_begin, b_begin = from - a_begin;
  const Word* const a_values = in.values + begin + first;
#pragma unroll
  for (int k = 0; k < merge_items; ++k) {
    const int i = k * merge_threads + thread;
    if (i >= count) break;
    const int source = i < of_a ? a_begin + i : a_length + b_begin + i - of_a;
    memory.keys[i] = a[source];
    memory.values[i] = a_values[source];
  }
  __syncthreads();
  const int diagonal = min(thread * merge_items, count);
  int i = from_a(memory.keys, of_a, memory.keys + of_a, count - of_a, diagonal), j = of_a + diagonal - i;
  Word keys[merge_items], values[merge_items];
#pragma unroll
  for (int k = 0; k < merge_items; ++k) {
    if (diagonal + k >= count) break;
    const int taken = j >= count || (i < of_a && memory.keys[i] <= memory.keys[j]) ? i++ : j++;
    keys[k] = memory.keys[taken], values[k] = memory.values[taken];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < merge_items; ++k)
    if (diagonal + k < count) memory.keys[diagonal + k] = keys[k], memory.values[diagonal + k] = values[k];
  __syncthreads();
  for (int k = thread; k < count; k += merge_threads) {
    out.keys[begin + place + k] = memory.keys[k];
    out.values[begin + place + k] = memory.values[k];
  }
  __syncthreads();
}

static __global__ __launch_bounds__(256) void join_kernel(const int* offsets, int segments, const Word* keys,
                                                          std::uint64_t* joined) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int segment = static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32; segment < segments;
       segment += static_cast<int>(gridDim.x) * 8)
    for (int i = offsets[segment] + lane; i < offsets[segment + 1]; i += 32)
      joined[i] = static_cast<std::uint64_t>(segment) << 32 | keys[i];
}
static __global__ __launch_bounds__(256) void split_kernel(const std::uint64_t* joined, Word* keys, int pairs) {
  for (int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x); i < pairs; i += static_cast<int>(gridDim.x) * 256)
    keys[i] = static_cast<Word>(joined[i]);
}

}  // namespace aisp::ch12::segments
