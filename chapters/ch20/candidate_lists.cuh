// SPDX-License-Identifier: Apache-2.0
// The best results of queries, from scores in memory or from lists of candidates, and a float64 reference of all scores.
#pragma once
#include <cuda_bf16.h>

#include "top_k.cuh"

namespace aisp::ch20 {

using bf16 = __nv_bfloat16;
using shared::Candidate;
using shared::Found;
using shared::Rows;

constexpr int depth = 768;  // of a vector
constexpr int select_threads = 512;
constexpr unsigned most_sorted = 2048, most_results = 1024;
constexpr unsigned sample_lines = 1024, line = 32;  // of a row of scores, in pieces of 128 bytes

struct Results {
  int* places;  // [query][k], the best first
  float* scores;
  unsigned k;
};
// Some lists for every query, as those of the blocks that looked for its candidates: [piece][query].
struct Lists {
  const Candidate* candidates;
  const unsigned* counts;
  unsigned pieces, queries, capacity;
  template <class Visit>
  __device__ __forceinline__ void visit(unsigned query, Visit visit) const {
    constexpr unsigned at_once = 4;
    const unsigned together = pieces == 1 ? select_threads : 32;  // threads of a list
    for (unsigned piece = threadIdx.x / together; piece < pieces; piece += select_threads / together) {
      const std::size_t list = std::size_t{piece} * queries + query;
      const unsigned count = min(counts[list], capacity);
      for (unsigned first = threadIdx.x % together; first < count; first += together * at_once) {
        Candidate c[at_once];
#pragma unroll
        for (unsigned i = 0; i < at_once; ++i)
          if (first + i * together < count) c[i] = candidates[list * capacity + first + i * together];
#pragma unroll
        for (unsigned i = 0; i < at_once; ++i)
          if (first + i * together < count) visit(shared::number_of(c[i]), shared::place_of(c[i]));
      }
    }
  }
};

struct SortMemory {
  shared::DigitCounts counts;
  Candidate list[most_sorted];
  unsigned listed;
};
// The best k and perhaps some more, sorted, in the memory's list. By a block of select_threads.
template <class Each>
__device__ __forceinline__ void sort_best(SortMemory& memory, unsigned k, Each each) {
  const Candidate least = shared::least_of_best<select_threads>(memory.counts, k, most_sorted, each, [](shared::DigitCounts&) {});
  if (threadIdx.x == 0) memory.listed = 0;
  __syncthreads();
  each([&](float x, unsigned place) {
    const Candidate c = shared::candidate(x, place);
    if (c >= least) memory.list[atomicAdd(&memory.listed, 1u)] = c;
  });
  __syncthreads();
  shared::sort_candidates(memory.list, memory.listed);
}
__device__ __forceinline__ void store_results(const SortMemory& memory, unsigned query, const Results& results) {
  for (unsigned r = threadIdx.x; r < results.k; r += select_threads) {
    results.places[std::size_t{query} * results.k + r] = static_cast<int>(shared::place_of(memory.list[r]));
    results.scores[std::size_t{query} * results.k + r] = shared::number_of(memory.list[r]);
  }
}

// A block a query. A list that was too short is made up for by the scores, where they are.
static __global__ __launch_bounds__(select_threads) void merge_kernel(Lists lists, Rows scores, Results results) {
  __shared__ SortMemory memory;
  const unsigned query = blockIdx.x;
  if (lists.pieces == 1 && lists.counts[query] > lists.capacity)
    sort_best(memory, results.k,
              [&](auto visit) { shared::visit_row(scores.row(query), scores.count, threadIdx.x, select_threads, visit); });
  else sort_best(memory, results.k, [&](auto visit) { lists.visit(query, visit); });
  store_results(memory, query, results);
}

// A number that at least k scores of the row reach: the k-th of a sample of it does. A block a query.
static __global__ __launch_bounds__(select_threads) void bound_kernel(Rows scores, unsigned k, float* bounds) {
  __shared__ shared::DigitCounts counts;
  const float* const row = scores.row(blockIdx.x);
  if (scores.count < k) {
    if (threadIdx.x == 0) bounds[blockIdx.x] = -INFINITY;
    return;
  }
  const auto count = [&](float x, unsigned) { atomicAdd(&counts.of[shared::ordered(x) >> (32 - shared::digit_bits)], 1u); };
  shared::clear(counts);
  if (scores.count <= 2 * sample_lines * line) shared::visit_row(row, scores.count, threadIdx.x, select_threads, count);
  else {
    const unsigned distance = scores.count / sample_lines / line * line;
#pragma unroll 8
    for (unsigned i = threadIdx.x / line; i < sample_lines; i += select_threads / line)
      count(row[i * distance + threadIdx.x % line], 0);
  }
  __syncthreads();
  shared::find_digit<select_threads>(counts, k);
  if (threadIdx.x == 0) bounds[blockIdx.x] = shared::lower_bound(Candidate{counts.digit} << (64 - shared::digit_bits));
}

// Rows of scores whose first one is of vector `first`: what reaches its query's bound is a candidate. A block keeps its own
// until it has read its part, so that one atomic of global memory adds them all.
constexpr int collect_threads = 256;
constexpr unsigned most_kept = 2048;
static __global__ __launch_bounds__(collect_threads) void collect_kernel(Rows scores, unsigned first, const float* bounds,
                                                                         Found found) {
  __shared__ Candidate kept[most_kept];
  __shared__ unsigned count, begin;
  const float bound = bounds[blockIdx.y];
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  shared::visit_row<4>(scores.row(blockIdx.y), scores.count, blockIdx.x * collect_threads + threadIdx.x,
                       gridDim.x * collect_threads, [&](float x, unsigned place) {
                         if (!(x >= bound)) return;
                         const unsigned slot = atomicAdd(&count, 1u);
                         if (slot < most_kept) kept[slot] = shared::candidate(x, first + place);
                         else found.add(blockIdx.y, shared::candidate(x, first + place));
                       });
  __syncthreads();
  const unsigned own = min(count, most_kept);
  if (threadIdx.x == 0 && own > 0) begin = atomicAdd(&found.counts[blockIdx.y], own);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < own; i += collect_threads)
    if (begin + i < found.capacity) found.lists[std::size_t{blockIdx.y} * found.capacity + begin + i] = kept[i];
}
// Leaves the best k where a list has grown long, and raises its bound.
static __global__ __launch_bounds__(select_threads) void shorten_kernel(Found found, unsigned longest, unsigned k,
                                                                        float* bounds) {
  __shared__ SortMemory memory;
  const unsigned query = blockIdx.x;
  const Lists lists{found.lists, found.counts, 1, gridDim.x, found.capacity};
  if (found.counts[query] <= longest) return;
  sort_best(memory, k, [&](auto visit) { lists.visit(query, visit); });
  for (unsigned r = threadIdx.x; r < k; r += select_threads)
    found.lists[std::size_t{query} * found.capacity + r] = memory.list[r];
  __syncthreads();
  if (threadIdx.x == 0) found.counts[query] = k, bounds[query] = shared::number_of(memory.list[k - 1]);
}

// For the reference: to[query][vector] of the vectors from the first one on, a warp a vector.
static __global__ __launch_bounds__(256) void exact_kernel(const bf16* vectors, unsigned count, const bf16* queries,
                                                           unsigned all_queries, double* to) {
  constexpr int own = depth / 32;
  const unsigned vector = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (vector >= count) return;
  double x[own];
#pragma unroll
  for (int i = 0; i < own; ++i) x[i] = __bfloat162float(vectors[std::size_t{vector} * depth + i * 32 + lane]);
  for (unsigned query = 0; query < all_queries; ++query) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < own; ++i) sum += x[i] * __bfloat162float(queries[std::size_t{query} * depth + i * 32 + lane]);
    sum = device::warp_sum(sum);
    if (lane == 0) to[std::size_t{query} * count + vector] = sum;
  }
}

}  // namespace aisp::ch20
