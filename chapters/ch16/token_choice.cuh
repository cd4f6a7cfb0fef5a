// SPDX-License-Identifier: Apache-2.0
// The last step of sampling by top-k and top-p, when a row's best tokens are in a block's shared memory, and what a sort of all
// logits needs around it.
#pragma once
#include <cmath>

#include "top_k.cuh"

namespace aisp::ch16 {

using shared::Candidate;
using shared::DigitCounts;
using shared::Found;
using shared::PassState;
using shared::Rows;

constexpr double p = 0.9, temperature = 0.8;
constexpr int threads = 512, most_k = 1024;
constexpr unsigned most_listed = 2048;  // candidates that a block keeps

struct Choice {
  unsigned k;
  const float* uniforms;
  int *tokens, *kept;  // kept[row][k]: by falling probability, then -1
};

struct Sums {
  double weights[most_k], sums[most_k];
};
struct Memory {
  union {
    DigitCounts counts;
    Sums of;
  };
  Candidate list[most_listed];
  unsigned listed, kept, token, last;
};

// The sorted list's first k are what top-k keeps. Of these top-p keeps the first ones whose sum reaches p of the whole, and of
// the sums in the order of the tokens the uniform number chooses one. In float64, so that no rounding decides.
static __device__ void pick(Memory& memory, unsigned row, const Choice& choice) {
  const unsigned k = choice.k, t = threadIdx.x;
  if (t == 0) memory.kept = 0, memory.token = ~0u, memory.last = 0;
  const double highest = shared::number_of(memory.list[0]);
#pragma unroll 1
  for (unsigned r = t; r < k; r += threads)
    memory.of.weights[r] = exp((shared::number_of(memory.list[r]) - highest) * (1 / temperature));
  __syncthreads();
  if (t < 32) {
    double before = 0;
#pragma unroll 1
    for (unsigned first = 0; first < k; first += 32) {
      double sum = first + t < k ? memory.of.weights[first + t] : 0;
#pragma unroll
      for (unsigned distance = 1; distance < 32; distance *= 2) {
        const double other = __shfl_up_sync(~0u, sum, distance);
        if (t >= distance) sum += other;
      }
      if (first + t < k) memory.of.sums[first + t] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
  }
  __syncthreads();
  const double enough = p * memory.of.sums[k - 1];
#pragma unroll 1
  for (unsigned r = t; r < k; r += threads)
    if (r == 0 || memory.of.sums[r - 1] < enough) atomicMax(&memory.kept, r + 1);
  __syncthreads();
  const unsigned kept = memory.kept;
  const double wanted = choice.uniforms[row] * memory.of.sums[kept - 1];
#pragma unroll 1
  for (unsigned r = t; r < k; r += threads) {
    const unsigned token = shared::place_of(memory.list[r]);
    choice.kept[std::size_t{row} * k + r] = r < kept ? static_cast<int>(token) : -1;
    if (r >= kept) continue;
    double sum = 0;
#pragma unroll 1
    for (unsigned other = 0; other < kept; ++other)
      if (shared::place_of(memory.list[other]) <= token) sum += memory.of.weights[other];
    if (sum > wanted) atomicMin(&memory.token, token);
    atomicMax(&memory.last, token);
  }
  __syncthreads();
  if (t == 0) choice.tokens[row] = static_cast<int>(memory.token == ~0u ? memory.last : memory.token);
}

// Adds a candidate to a list, or only counts it.
__device__ __forceinline__ void add(Candidate* list, unsigned* listed, Candidate c) {
  const unsigned slot = atomicAdd(listed, 1u);
  if (slot < most_listed) list[slot] = c;
}
// Keeps the candidates from `least` on. A number below `least` is told by one comparison.
template <class Each>
__device__ __forceinline__ void keep(Candidate* list, unsigned* listed, Candidate least, Each each) {
  const float bound = shared::lower_bound(least);
  each([&](float x, unsigned place) {
    if (!(x >= bound)) return;
    const Candidate c = shared::candidate(x, place);
    if (c >= least) add(list, listed, c);
  });
}

// A block sorts and picks what it has in its list.
__device__ __forceinline__ void finish(Memory& memory, unsigned row, const Choice& choice) {
  shared::sort_candidates(memory.list, memory.listed);
  pick(memory, row, choice);
}

template <class Each>
__device__ __forceinline__ void list_best(Memory& memory, unsigned k, Each each) {
  const Candidate least = shared::least_of_best<threads>(memory.counts, k, most_listed, each, [](DigitCounts&) {});
  if (threadIdx.x == 0) memory.listed = 0;
  __syncthreads();
  keep(memory.list, &memory.listed, least, each);
  __syncthreads();
}

// Rows whose ids are sorted: `ids` begins anew every `pitch`.
static __global__ __launch_bounds__(threads) void pick_sorted_kernel(Rows rows, const unsigned* ids, unsigned pitch,
                                                                     Choice choice) {
  extern __shared__ __align__(128) unsigned char space[];
  Memory& memory = *reinterpret_cast<Memory*>(space);
  for (unsigned r = threadIdx.x; r < choice.k; r += threads) {
    const unsigned id = ids[std::size_t{blockIdx.x} * pitch + r];
    memory.list[r] = shared::candidate(rows.row(blockIdx.x)[id], id);
  }
  __syncthreads();
  pick(memory, blockIdx.x, choice);
}
// For the sorts: every logit's id, and where rows begin and end.
static __global__ void number_kernel(Rows rows, unsigned* ids, int* begins) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < std::size_t{rows.rows} * rows.pitch) ids[i] = static_cast<unsigned>(i % rows.pitch);
  if (i < rows.rows) {
    begins[i] = static_cast<int>(i * rows.pitch);
    begins[rows.rows + i] = static_cast<int>(i * rows.pitch + rows.count);
  }
}
// Keys that name their rows; the padding of a row comes last in it.
static __global__ void join_kernel(Rows rows, Candidate* keys) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= std::size_t{rows.rows} * rows.pitch) return;
  const unsigned key = i % rows.pitch < rows.count ? ~shared::ordered(rows.numbers[i]) : ~0u;
  keys[i] = Candidate{i / rows.pitch} << 32 | key;
}

}  // namespace aisp::ch16
