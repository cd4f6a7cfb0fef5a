// SPDX-License-Identifier: Apache-2.0
// Computes the destinations of a tile's keys when they are ordered by a digit, equal digits in the order of the input. Each warp
// ranks its keys by ballots and counts its digits in shared memory; sums over digits and warps make places of the ranks. Blocks
// of rank_threads; warp w has consecutive keys of the tile, and its lane's k-th key is the (32 k + lane)-th of them.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::ch07 {

inline constexpr int rank_warps = 16, rank_threads = rank_warps * 32;
inline constexpr int lane_keys = 16, warp_keys = lane_keys * 32, tile_keys = rank_warps * warp_keys;

// The sum of the values of the threads before the calling one; `total` is that of the block. `sums` has one word a warp, and may
// be used again after the next barrier.
__device__ inline unsigned sum_before(unsigned value, unsigned* sums, unsigned& total) {
  const auto through_lane = [](unsigned sum) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const unsigned below = __shfl_up_sync(device::whole_warp, sum, offset);
      if (threadIdx.x % 32 >= offset) sum += below;
    }
    return sum;
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned through = through_lane(value);
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  const unsigned of_warps = through_lane(lane < rank_warps ? sums[lane] : 0);
  total = __shfl_sync(device::whole_warp, of_warps, rank_warps - 1);
  const unsigned before = __shfl_sync(device::whole_warp, of_warps, warp == 0 ? 0 : warp - 1);
  return (warp == 0 ? 0 : before) + through - value;
}

// A rank for each key of a lane, two in a register: all of them, and the keys, stay in registers of 64 a thread.
class Ranks {
 public:
  __device__ void set(int k, unsigned rank) { pairs_[k / 2] = k % 2 == 0 ? rank : pairs_[k / 2] | rank << 16; }
  __device__ unsigned operator[](int k) const { return k % 2 == 0 ? pairs_[k / 2] & 0xFFFF : pairs_[k / 2] >> 16; }

 private:
  unsigned pairs_[lane_keys / 2];
};

template <int bits>
struct TileRank {
  static constexpr int digits = 1 << bits;
  static constexpr int owned = digits > rank_threads ? digits / rank_threads : 1;  // digits that one thread adds up

  unsigned counts[rank_warps][digits];  // of each warp; then the place of its first key with that digit
  unsigned sums[rank_warps];

  // Lanes with the same digit as the calling one.
  static __device__ unsigned peers_of(unsigned digit) {
    unsigned peers = device::whole_warp;
#pragma unroll
    for (int bit = 0; bit < bits; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const unsigned votes = __ballot_sync(device::whole_warp, set);
      peers &= set ? votes : ~votes;
    }
    return peers;
  }

  // ranks[k]: keys of this warp before the lane's k-th that have the same digit. `digit_of(k)` is that key's.
  template <class DigitOf>
  __device__ void rank(Ranks& ranks, DigitOf digit_of) {
    unsigned* mine = counts[threadIdx.x / 32];
    const unsigned lanes_before = (1u << threadIdx.x % 32) - 1;
    for (int digit = threadIdx.x % 32; digit < digits; digit += 32) mine[digit] = 0;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < lane_keys; ++k) {
      const unsigned digit = digit_of(k), peers = peers_of(digit);
      const unsigned before = __popc(peers & lanes_before), earlier = mine[digit];
      __syncwarp();
      if (before == 0) mine[digit] = earlier + __popc(peers);
      __syncwarp();
      ranks.set(k, earlier + before);
    }
    __syncthreads();
  }

  // Makes counts[w][digit] the place in the ordered tile of warp w's first key with that digit. One thread for each digit calls
  // `counted(digit, keys of the tile that have it)` and then `placed(digit, place of the first of them)`.
  template <class Counted, class Placed>
  __device__ void place(Counted counted, Placed placed) {
    unsigned mine = 0;
#pragma unroll
    for (int i = 0; i < owned; ++i) {
      const int digit = static_cast<int>(threadIdx.x) * owned + i;
      if (digit >= digits) continue;
      unsigned total = 0;
#pragma unroll 4
      for (int w = 0; w < rank_warps; ++w) total += counts[w][digit];
      counted(digit, total);
      mine += total;
    }
    unsigned start = sum_before(mine, sums, mine);
#pragma unroll
    for (int i = 0; i < owned; ++i) {
      const int digit = static_cast<int>(threadIdx.x) * owned + i;
      if (digit >= digits) continue;
      placed(digit, start);
#pragma unroll 4
      for (int w = 0; w < rank_warps; ++w) {
        const unsigned count = counts[w][digit];
        counts[w][digit] = start;
        start += count;
      }
    }
    __syncthreads();
  }

  __device__ unsigned place_of(unsigned digit, unsigned rank) const { return counts[threadIdx.x / 32][digit] + rank; }
};

}  // namespace aisp::ch07
