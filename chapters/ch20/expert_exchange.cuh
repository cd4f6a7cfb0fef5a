// SPDX-License-Identifier: Apache-2.0
// How tokens of two GPUs find their experts and come back, in kernels that store into the other GPU's memory and load from it. A
// GPU numbers the rows of its experts: those of its own tokens by expert, then those of the other GPU's tokens by expert.
#pragma once
#include <aisp/device/vector.cuh>

#include "moe/index.cuh"
#include "rows.cuh"

namespace aisp::ch20::exchange {

using shared::packet;
inline constexpr int threads = 256, top_k = 8;

struct Split {
  int gpu, of_gpu;  // this one, and how many experts each has
  __device__ __forceinline__ bool is_own(int expert) const { return expert / of_gpu == gpu; }
};

// Tells both GPUs which slots are theirs: [own slots | the other GPU's slots] at each, with the number of the group, or -1.
static __global__ __launch_bounds__(threads) void publish_kernel(const int* experts_of, const float* shares, int slots,
                                                                 Split split, int* own_groups, int* others_groups,
                                                                 float* others_shares) {
  const int slot = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (slot >= slots) return;
  const int expert = experts_of[slot];
  const bool own = split.is_own(expert);
  own_groups[slot] = own ? expert % split.of_gpu : -1;
  others_groups[slots + slot] = own ? -1 : split.of_gpu + expert % split.of_gpu;
  others_shares[slot] = shares[slot];
}

// After the ranking: the row of each slot, where its token is, and of each row what the product reads: the row itself, or the
// token, the other GPU's after the own ones.
static __global__ __launch_bounds__(threads) void place_kernel(moe::Slots at, int slots, bool is_by_token, int* own_rows,
                                                               int* others_rows, int* read_of_row) {
  const int slot = static_cast<int>(blockIdx.x * threads + threadIdx.x);
  if (slot >= 2 * slots) return;
  const int row = moe::row_of(at, slot);
  if (row < 0) return;
  if (slot < slots) own_rows[slot] = row;
  else others_rows[slot - slots] = row;
  read_of_row[row] = is_by_token ? slot / top_k : row;
}

// A block reads a token and writes it to the rows of its slots, of its own experts and of the other GPU's.
static __global__ __launch_bounds__(threads) void permute_kernel(const uint4* tokens, const int* experts_of,
                                                                 const int* row_of_slot, Split split, uint4* own, uint4* others,
                                                                 int packets) {
  const std::size_t first = std::size_t{blockIdx.x} * top_k;
  uint4* to[top_k];
#pragma unroll
  for (int k = 0; k < top_k; ++k)
    to[k] = (split.is_own(experts_of[first + k]) ? own : others) + static_cast<std::ptrdiff_t>(row_of_slot[first + k]) * packets;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    const uint4 loaded = tokens[std::size_t{blockIdx.x} * packets + i];
#pragma unroll
    for (int k = 0; k < top_k; ++k) to[k][i] = loaded;
  }
}

// A block writes a token to its place among this GPU's tokens, and among the other's where one of its experts is there.
static __global__ __launch_bounds__(threads) void dispatch_kernel(const uint4* tokens, const int* experts_of, Split split,
                                                                  uint4* own, uint4* others, int packets) {
  bool stays = true;
#pragma unroll
  for (int k = 0; k < top_k; ++k) stays &= split.is_own(experts_of[std::size_t{blockIdx.x} * top_k + k]);
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    const std::size_t place = std::size_t{blockIdx.x} * packets + i;
    const uint4 loaded = tokens[place];
    own[place] = loaded;
    if (!stays) others[place] = loaded;
  }
}

// The places of the results of a token's slots.
struct Results {
  const uint4 *own, *others;  // of this GPU's experts, of the other's
};

// A token's rows, each times its share, added up in the order of its slots. Whether a row counts is said by counts(k).
template <class Counts>
__device__ __forceinline__ void add_rows(float (&sum)[packet], const uint4* const (&rows)[top_k], const float (&share)[top_k],
                                         int i, Counts counts) {
  uint4 loaded[top_k];
#pragma unroll
  for (int k = 0; k < top_k; ++k) loaded[k] = counts(k) ? rows[k][i] : uint4{0, 0, 0, 0};
#pragma unroll
  for (int k = 0; k < top_k; ++k) {
    float x[packet];
    shared::unpack(loaded[k], x);
#pragma unroll
    for (int j = 0; j < packet; ++j) sum[j] = fmaf(share[k], x[j], sum[j]);
  }
}

// out = the sum of the token's rows, wherever they lie, each times its share.
static __global__ __launch_bounds__(threads) void combine_kernel(Results results, const int* experts_of, const int* row_of_slot,
                                                                 const float* shares, Split split, uint4* out, int packets) {
  const std::size_t first = std::size_t{blockIdx.x} * top_k;
  const uint4* rows[top_k];
  float share[top_k];
#pragma unroll
  for (int k = 0; k < top_k; ++k) {
    rows[k] = (split.is_own(experts_of[first + k]) ? results.own : results.others) +
              static_cast<std::ptrdiff_t>(row_of_slot[first + k]) * packets;
    share[k] = shares[first + k];
  }
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    float sum[packet]{};
    add_rows(sum, rows, share, i, [](int) { return true; });
    out[std::size_t{blockIdx.x} * packets + i] = shared::pack(sum);
  }
}

// Adds up this GPU's rows of a token, those of the slots whose group is not -1. `with`: the other GPU's sum, of tokens with a
// slot there, or null.
static __global__ __launch_bounds__(threads) void reduce_kernel(const uint4* results, const int* groups, const int* row_of_slot,
                                                                const float* shares, const uint4* with, uint4* out, int packets) {
  const std::size_t first = std::size_t{blockIdx.x} * top_k;
  const uint4* rows[top_k];
  float share[top_k];
  unsigned here = 0;
#pragma unroll
  for (int k = 0; k < top_k; ++k) {
    const bool counts = groups[first + k] >= 0;
    here |= static_cast<unsigned>(counts) << k;
    rows[k] = results + static_cast<std::size_t>(counts ? row_of_slot[first + k] : 0) * packets;
    share[k] = shares[first + k];
  }
  const bool all_here = here == (1u << top_k) - 1;
  if (with == nullptr && here == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += threads) {
    float sum[packet]{};
    if (with != nullptr && !all_here) shared::unpack(with[std::size_t{blockIdx.x} * packets + i], sum);
    add_rows(sum, rows, share, i, [here](int k) { return (here >> k & 1) != 0; });
    out[std::size_t{blockIdx.x} * packets + i] = shared::pack(sum);
  }
}

}  // namespace aisp::ch20::exchange
