// SPDX-License-Identifier: Apache-2.0
// Which pages of a cache a query should read: a bound of its scores in each page, and the best of them, by a block for each KV
// head. Of equal pages the first ones win. KV heads of all sequences are counted through.
#pragma once
#include <cuda_bf16.h>
#include <aisp/device/fence.cuh>
#include <aisp/device/reduce.cuh>

#include "decode_reference.hpp"

namespace aisp::ch18 {

constexpr int page_keys = 64;
constexpr float grid_step = 0.125f;  // of queries and bounds, so that sums are exact in any order and ties are ties

// Computes the bounds of a page (blockIdx.x) of a KV head (blockIdx.y), whose keys lie `capacity` rows after those of the one
// before.
static __global__ __launch_bounds__(head_size) void bounds_kernel(const bf16* k, int context, int capacity, bf16* upper,
                                                                  bf16* lower) {
  const std::size_t of = blockIdx.y, d = threadIdx.x, to = (of * gridDim.x + blockIdx.x) * head_size + d;
  const int first = static_cast<int>(blockIdx.x) * page_keys;
  float highest = -attention::infinity, lowest = attention::infinity;
  for (int row = first; row < min(first + page_keys, context); ++row) {
    const float x = attention::widened(k[(of * capacity + row) * head_size + d]);
    highest = fmaxf(highest, x), lowest = fminf(lowest, x);
  }
  upper[to] = __float2bfloat16_rn(ceilf(highest / grid_step) * grid_step);
  lower[to] = __float2bfloat16_rn(floorf(lowest / grid_step) * grid_step);
}

// In each dimension no key of a page is above `upper` or below `lower`: [KV head][page][head_size].
struct Bounds {
  const bf16 *upper, *lower;
  int pages;
};

// A warp's view of 16 pages. The largest product that a key within the bounds can have with a query is the sum of those of its
// positive components with `upper` and of its negative ones with `lower`; both are products of decoding.
template <int group>
struct BoundsWarp {
  using S = attention::DecodeShape<head_size, group>;
  attention::DecodeWarp<S> upper, lower;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  // `q`: of the KV head's query heads.
  __device__ __forceinline__ void take_queries(const bf16* q) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < S::pieces; ++i) {
        const int row = lane() / 4 + half * 8;
        upper.q[half][i] = lower.q[half][i] = uint4{0, 0, 0, 0};
        if (row >= group) continue;
        const uint4 all = *reinterpret_cast<const uint4*>(q + row * head_size + lane() % 4 * 8 + i * 32);
        upper.q[half][i] = uint4{positive(all.x), positive(all.y), positive(all.z), positive(all.w)};
        lower.q[half][i] = uint4{negative(all.x), negative(all.y), negative(all.z), negative(all.w)};
      }
  }
  __device__ __forceinline__ void request(const Bounds& bounds, int of, int first) {
    const std::size_t all = std::size_t(bounds.pages) * head_size;
    const attention::Piece piece{of, 0, bounds.pages, 0};
    upper.request_keys(attention::ContiguousCache{bounds.upper, nullptr, head_size, 0, all}, piece, 0, first);
    lower.request_keys(attention::ContiguousCache{bounds.lower, nullptr, head_size, 0, all}, piece, 0, first);
  }
  // The best of the query heads; lanes 0 to 3 have pages 8 n + 2 lane + i in best[2 n + i].
  __device__ __forceinline__ void score(float (&best)[4]) const {
    float scores[8] = {};
    upper.score(scores);
    lower.score(scores);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      best[j] = scores[j / 2 * 4 + j % 2];
#pragma unroll
      for (int heads = 1; heads < group; heads *= 2) best[j] = fmaxf(best[j], __shfl_xor_sync(~0u, best[j], 4 * heads));
    }
  }

 private:
  static_assert(group <= 8 && (group & (group - 1)) == 0);
  __device__ __forceinline__ static unsigned positive(unsigned pair) {
    const __nv_bfloat162 x = __hmax2(reinterpret_cast<const __nv_bfloat162&>(pair), __float2bfloat162_rn(0));
    return reinterpret_cast<const unsigned&>(x);
  }
  __device__ __forceinline__ static unsigned negative(unsigned pair) {
    const __nv_bfloat162 x = __hmin2(reinterpret_cast<const __nv_bfloat162&>(pair), __float2bfloat162_rn(0));
    return reinterpret_cast<const unsigned&>(x);
  }
};

// Numbers in the order of the scores.
__device__ __forceinline__ unsigned ordered(float score) {
  const unsigned bits = __float_as_uint(score);
  return bits ^ (static_cast<int>(bits) < 0 ? ~0u : 0x80000000u);
}

struct Selection {
  int pages, kept, context;
  unsigned* masks;      // a bit for each page, [KV head][mask_words()]
  int *lists, *counts;  // if not null: the pages in their order, [KV head][kept]; how many keys they have
  __host__ __device__ int mask_words() const { return (pages + 31) / 32; }
};

// In shared memory: after it the ordered scores of all pages, and after them counts of the masks' words.
struct SelectState {
  int histogram[256];
  unsigned digit;
  int among, last_chosen;  // how many are still to be found among those of this digit; is the context's last page among them
  __device__ __forceinline__ unsigned* scores() { return reinterpret_cast<unsigned*>(this + 1); }
};
inline std::size_t select_shared_bytes(std::size_t pages) {
  return sizeof(SelectState) + (pages + (pages + 31) / 32) * sizeof(unsigned);
}

// By all threads of a block.
template <int threads>
__device__ __forceinline__ void select_pages(const Selection& to, int of, SelectState& state) {
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32, words = to.mask_words();
  const unsigned* const scores = state.scores();
  int* const counts = reinterpret_cast<int*>(state.scores() + to.pages);
  // The lowest score that is taken, digit by digit from the highest one; `wanted` of those that have it.
  unsigned lowest = 0, known = 0;
  int wanted = to.kept;
  for (int shift = 24; shift >= 0 && to.kept < to.pages; shift -= 8) {
    for (int i = t; i < 256; i += threads) state.histogram[i] = 0;
    __syncthreads();
    for (int i = t; i < to.pages; i += threads)
      if ((scores[i] & known) == lowest) atomicAdd(&state.histogram[scores[i] >> shift & 255], 1);
    __syncthreads();
    if (warp == 0) {
      int own[8], sum = 0;  // of the digits 255 - 8 lane and below
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += own[i] = state.histogram[255 - 8 * lane - i];
      int above = sum;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int further = __shfl_up_sync(~0u, above, distance);
        if (lane >= distance) above += further;
      }
      above -= sum;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (above < wanted && above + own[i] >= wanted) state.digit = 255 - 8 * lane - i, state.among = wanted - above;
        above += own[i];
      }
    }
    __syncthreads();
    lowest |= state.digit << shift;
    known |= 255u << shift;
    wanted = state.among;
  }
  // Each warp counts those in its words, then finds a place for each page by what is in the words before.
  const auto is_above = [&](int page) { return page < to.pages && (to.kept >= to.pages || scores[page] > lowest); };
  const auto is_equal = [&](int page) { return page < to.pages && to.kept < to.pages && scores[page] == lowest; };
  for (int word = warp; word < words; word += threads / 32) {
    const unsigned above = __ballot_sync(~0u, is_above(word * 32 + lane)), equal = __ballot_sync(~0u, is_equal(word * 32 + lane));
    if (lane == 0) counts[word] = __popc(above) << 16 | __popc(equal);
  }
  if (t == 0) state.last_chosen = 0;
  __syncthreads();
  const unsigned lower_lanes = (1u << lane) - 1;
  for (int word = warp; word < words; word += threads / 32) {
    int before = 0;
    for (int i = lane; i < word; i += 32) before += counts[i];
    before = device::warp_sum(before);
    const int page = word * 32 + lane, equals_before = before & 0xFFFF;
    const unsigned equal = __ballot_sync(~0u, is_equal(page));
    const bool chosen = is_above(page) || (is_equal(page) && equals_before + __popc(equal & lower_lanes) < wanted);
    const unsigned bits = __ballot_sync(~0u, chosen);
    if (lane == 0) to.masks[std::size_t(of) * words + word] = bits;
    if (to.lists != nullptr && chosen) {
      const int place = (before >> 16) + min(equals_before, wanted) + __popc(bits & lower_lanes);
      to.lists[std::size_t(of) * to.kept + place] = page;
      if (page == to.pages - 1) state.last_chosen = 1;
    }
  }
  if (to.lists == nullptr) return;
  __syncthreads();
  const int missing = state.last_chosen ? to.pages * page_keys - to.context : 0;
  if (t == 0) to.counts[of] = min(to.kept, to.pages) * page_keys - missing;
}

// A block has 64 pages (blockIdx.x) of a KV head (blockIdx.y).
template <int group>
__global__ __launch_bounds__(attention::decode_threads) void score_kernel(const bf16* q, Bounds bounds, float* scores) {
  const int of = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x * attention::decode_warps + threadIdx.x / 32) * attention::decode_tile;
  if (first >= bounds.pages) return;
  BoundsWarp<group> own;
  own.request(bounds, of, first);
  own.take_queries(q + std::size_t(of) * group * head_size);
  float best[4];
  own.score(best);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (const int page = first + i / 2 * 8 + lane * 2 + i % 2; lane < 4 && page < bounds.pages)
      scores[std::size_t(of) * bounds.pages + page] = best[i];
}

constexpr int select_threads = 256;
static __global__ __launch_bounds__(select_threads) void select_kernel(const float* scores, Selection to) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& state = *reinterpret_cast<SelectState*>(memory);
  const int of = static_cast<int>(blockIdx.x);
  for (int page = static_cast<int>(threadIdx.x); page < to.pages; page += select_threads)
    state.scores()[page] = ordered(scores[std::size_t(of) * to.pages + page]);
  select_pages<select_threads>(to, of, state);
}

// Both at once: scores never leave the block of their KV head.
template <int group>
__global__ __launch_bounds__(select_threads) void score_and_select_kernel(const bf16* q, Bounds bounds, Selection to) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int step = select_threads / 32 * attention::decode_tile;
  auto& state = *reinterpret_cast<SelectState*>(memory);
  const int of = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (AISP_SM >= 90) device::let_dependents_start();  // which wait for what is written here
  int first = static_cast<int>(threadIdx.x) / 32 * attention::decode_tile;
  BoundsWarp<group> own;
  own.request(bounds, of, first);
  own.take_queries(q + std::size_t(of) * group * head_size);
  for (; first < bounds.pages; first += step) {
    float best[4];
    own.score(best);
    own.request(bounds, of, first + step);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int page = first + i / 2 * 8 + lane * 2 + i % 2; lane < 4 && page < bounds.pages)
        state.scores()[page] = ordered(best[i]);
  }
  __syncthreads();
  select_pages<select_threads>(to, of, state);
}

// Computes the scores to compare with: in float64, from the keys themselves, a block for each page (blockIdx.x).
template <int group>
__global__ __launch_bounds__(head_size) void exact_scores_kernel(const bf16* q, const bf16* k, int context, int capacity,
                                                                 double* scores) {
  __shared__ double sums[head_size / 32];
  const std::size_t of = blockIdx.y, d = threadIdx.x;
  const int first = static_cast<int>(blockIdx.x) * page_keys;
  double highest = -1e300, lowest = 1e300, best = -1e300;
  for (int row = first; row < min(first + page_keys, context); ++row) {
    const double x = attention::widened(k[(of * capacity + row) * head_size + d]);
    highest = fmax(highest, x), lowest = fmin(lowest, x);
  }
  highest = ceil(highest / grid_step) * grid_step, lowest = floor(lowest / grid_step) * grid_step;
  for (std::size_t h = 0; h < group; ++h) {
    const double x = attention::widened(q[(of * group + h) * head_size + d]);
    best = fmax(best, device::block_sum(fmax(x * highest, x * lowest), sums));
  }
  if (d == 0) scores[of * gridDim.x + blockIdx.x] = best;
}

}  // namespace aisp::ch18
