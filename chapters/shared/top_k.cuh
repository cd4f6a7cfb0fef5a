// SPDX-License-Identifier: Apache-2.0
// The k largest of a row of fp32 numbers, exactly and in their order: by a block that counts digits in shared memory, or by many
// blocks a row that count eight bits at a time, as torch.topk does. Of equal numbers those of lower places come first, and -0 is
// equal to 0. NaNs are not expected.
#pragma once
#include <aisp/device/reduce.cuh>
#include <aisp/launch.hpp>

#include <cmath>

namespace aisp::shared {

// A number and its place: of two candidates the larger one comes first.
using Candidate = unsigned long long;

// Bits in the order of the numbers; adding zero makes 0 of -0.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ (static_cast<int>(bits) < 0 ? ~0u : 0x80000000u);
}
__device__ __forceinline__ Candidate candidate(float x, unsigned place) { return Candidate{ordered(x)} << 32 | ~place; }
__device__ __forceinline__ unsigned place_of(Candidate c) { return ~static_cast<unsigned>(c); }
__device__ __forceinline__ float number_of(Candidate c) {
  const auto key = static_cast<unsigned>(c >> 32);
  return __uint_as_float(key ^ (static_cast<int>(key) < 0 ? 0x80000000u : ~0u));
}

// No number below it is a candidate from `least` on: digits alone may say a NaN.
__device__ __forceinline__ float lower_bound(Candidate least) {
  const float number = number_of(least);
  return number == number ? number : -INFINITY;
}

// visit(x, place) of the numbers of a row that begins at 16 bytes, which `threads` threads share; this one is number `thread`.
template <int in_flight = 2, class Visit>
__device__ __forceinline__ void visit_row(const float* row, unsigned count, unsigned thread, unsigned threads, Visit visit) {
  const unsigned packets = count / 4;
  for (unsigned first = thread; first < packets; first += threads * in_flight) {
    float4 loaded[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j)
      if (first + j * threads < packets) loaded[j] = reinterpret_cast<const float4*>(row)[first + j * threads];
#pragma unroll
    for (int j = 0; j < in_flight; ++j) {
      const unsigned place = (first + j * threads) * 4;
      if (place >= packets * 4) break;
      visit(loaded[j].x, place);
      visit(loaded[j].y, place + 1);
      visit(loaded[j].z, place + 2);
      visit(loaded[j].w, place + 3);
    }
  }
  for (unsigned place = packets * 4 + thread; place < count; place += threads) visit(row[place], place);
}

constexpr int digit_bits = 12, digits = 1 << digit_bits;
struct DigitCounts {
  alignas(16) unsigned of[digits];
  unsigned warps[device::largest_block_in_warps];
  unsigned digit, above, count;  // the digit of the number that is wanted, how many are above it and how many have it
};

__device__ __forceinline__ void clear(DigitCounts& counts) {
  for (unsigned i = threadIdx.x; i < digits; i += blockDim.x) counts.of[i] = 0;
  __syncthreads();
}

// The digit of the `wanted`-th largest; there are as many. By all threads.
template <int threads>
__device__ __forceinline__ void find_digit(DigitCounts& counts, unsigned wanted) {
  constexpr int own = digits / threads;
  static_assert(own % 4 == 0);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, highest = digits - 1 - threadIdx.x * own;
  unsigned mine[own], sum = 0;
#pragma unroll
  for (int i = 0; i < own; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&counts.of[highest - i - 3]);
    mine[i] = four.w, mine[i + 1] = four.z, mine[i + 2] = four.y, mine[i + 3] = four.x;
    sum += four.x + four.y + four.z + four.w;
  }
  unsigned above = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(~0u, above, distance);
    if (lane >= distance) above += other;
  }
  if (lane == 31) counts.warps[warp] = above;
  above -= sum;
  __syncthreads();
#pragma unroll 1  // four at a time cost registers of the callers' loops
  for (unsigned w = 0; w < warp; ++w) above += counts.warps[w];
  if (above < wanted && wanted <= above + sum) {
#pragma unroll
    for (int i = 0; i < own; ++i) {
      if (above < wanted && wanted <= above + mine[i]) counts.digit = highest - i, counts.above = above, counts.count = mine[i];
      above += mine[i];
    }
  }
  __syncthreads();
}

// No more than `most` candidates are at or above the result, and at least k are. each(visit) visits all numbers of this block;
// join(counts) adds what other blocks counted. Numbers with one first digit are told apart by the next one, and equal numbers by
// the digits of their places.
template <int threads, class Each, class Join>
__device__ __forceinline__ Candidate least_of_best(DigitCounts& counts, unsigned k, unsigned most, Each each, Join join) {
  Candidate known = 0;
  unsigned above = 0;
  clear(counts);
  each([&](float x, unsigned) { atomicAdd(&counts.of[ordered(x) >> (32 - digit_bits)], 1u); });
#pragma unroll 1
  for (int shift = 64 - digit_bits;; shift -= digit_bits) {
    __syncthreads();
    join(counts);
    find_digit<threads>(counts, k - above);
    known |= Candidate{counts.digit} << shift;
    if (above + counts.above + counts.count <= most || shift < digit_bits) return known;
    above += counts.above;
    __syncthreads();
    clear(counts);
    each([&](float x, unsigned place) {
      const Candidate c = candidate(x, place);
      if (((c ^ known) >> shift) == 0) atomicAdd(&counts.of[c >> (shift - digit_bits) & (digits - 1)], 1u);
    });
  }
}

// The largest first. The list has room up to the next power of two.
__device__ __forceinline__ void sort_candidates(Candidate* list, unsigned count) {
  unsigned width = 2;
  while (width < count) width *= 2;
  for (unsigned i = count + threadIdx.x; i < width; i += blockDim.x) list[i] = 0;
  __syncthreads();
  for (unsigned run = 2; run <= width; run *= 2)
    for (unsigned distance = run / 2; distance > 0; distance /= 2) {
      for (unsigned i = threadIdx.x; i < width / 2; i += blockDim.x) {
        const unsigned low = 2 * i - (i & (distance - 1)), high = low + distance;
        const Candidate a = list[low], b = list[high];
        if ((a < b) == ((low & run) == 0)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
}

// Rows whose beginnings lie `pitch` numbers apart, a multiple of four.
struct Rows {
  const float* numbers;
  unsigned rows, count, pitch;
  __device__ __forceinline__ const float* row(unsigned r) const { return numbers + std::size_t{r} * pitch; }
};

// Candidates that several blocks have found in a row; what does not fit is counted only.
struct Found {
  Candidate* lists;
  unsigned* counts;
  unsigned capacity;
  __device__ __forceinline__ void add(unsigned row, Candidate c) const {
    const unsigned slot = atomicAdd(&counts[row], 1u);
    if (slot < capacity) lists[std::size_t{row} * capacity + slot] = c;
  }
};

// Radix select by many blocks a row (blockIdx.x of row blockIdx.y), a pass a launch: `pass` 0 to 3 finds eight more bits of the
// k-th largest number. The block that finishes last takes the digit and leaves counts and tickets at 0.
constexpr int pass_threads = 256;
struct PassState {
  unsigned counts[256];
  unsigned known, wanted, finished;
};
static __global__ __launch_bounds__(pass_threads) void digit_pass_kernel(Rows rows, PassState* states, unsigned k, int pass) {
  __shared__ unsigned counts[256], sums[pass_threads / 32];
  __shared__ bool last;
  PassState& state = states[blockIdx.y];
  const int shift = 24 - 8 * pass;
  const unsigned t = threadIdx.x, known = pass == 0 ? 0 : state.known;
  counts[t] = 0;
  __syncthreads();
  visit_row(rows.row(blockIdx.y), rows.count, blockIdx.x * pass_threads + t, gridDim.x * pass_threads, [&](float x, unsigned) {
    const unsigned key = ordered(x);
    if (pass == 0 || (key ^ known) >> (shift + 8) == 0) atomicAdd(&counts[key >> shift & 255], 1u);
  });
  __syncthreads();
  if (counts[t] > 0) atomicAdd(&state.counts[t], counts[t]);
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicAdd(&state.finished, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  const unsigned digit = 255 - t, own = __ldcg(&state.counts[digit]), wanted = pass == 0 ? k : state.wanted;
  unsigned above = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned other = __shfl_up_sync(~0u, above, distance);
    if (t % 32 >= distance) above += other;
  }
  if (t % 32 == 31) sums[t / 32] = above;
  above -= own;
  __syncthreads();
  for (unsigned w = 0; w < t / 32; ++w) above += sums[w];
  __syncthreads();
  state.counts[digit] = 0;
  if (above < wanted && wanted <= above + own) state.known = known | digit << shift, state.wanted = wanted - above;
  if (t == 0) state.finished = 0;
}
static __global__ __launch_bounds__(pass_threads) void gather_kernel(Rows rows, const PassState* states, Found found) {
  const unsigned least = states[blockIdx.y].known;
  visit_row(rows.row(blockIdx.y), rows.count, blockIdx.x * pass_threads + threadIdx.x, gridDim.x * pass_threads,
            [&](float x, unsigned place) {
              if (ordered(x) >= least) found.add(blockIdx.y, candidate(x, place));
            });
}

// All passes and the gathering: the k largest of each row and all that equal the k-th are in `found`, whose counts are 0 before;
// so are the states, before and after. `blocks` for all rows together.
template <class Launch>
void find_in_four_passes(Launch& launch, const Rows& rows, PassState* states, unsigned k, const Found& found, unsigned blocks) {
  const Grid grid{dim3{blocks < rows.rows ? 1 : blocks / rows.rows, rows.rows}, pass_threads};
  for (int pass = 0; pass < 4; ++pass) launch(digit_pass_kernel, grid, rows, states, k, pass);
  launch(gather_kernel, grid, rows, states, found);
}

}  // namespace aisp::shared
