// SPDX-License-Identifier: Apache-2.0
// Running sums across blocks in one pass: each block tells the sum of its tile as soon as it has it, adds up what the tiles
// before it have told, and tells the result (Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back,
// 2016). Tiles must be handed out in order (by a ticket counter), so that those that a block waits for are finished or in work.
// One word a tile, zeroed before the kernel. What is added up is a kind: Counts or Reals.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::look_back {

// Nothing told yet (0), the sum of the tile, or the sum up to and with it. Flag and sum are one word, so that no order between
// two accesses is needed.
constexpr unsigned of_tile = 1u << 30, up_to_tile = 2u << 30, sum_bits = of_tile - 1;

// Integers below 2^30, in words of 4 bytes.
struct Counts {
  using Word = unsigned;
  using Sum = unsigned;
  static __device__ Word word(unsigned flag, Sum sum) { return flag | sum; }
  static __device__ unsigned flag_of(Word word) { return word & ~sum_bits; }
  static __device__ Sum sum_of(Word word) { return word & sum_bits; }
  static __device__ Sum sum_of_lanes(Sum sum) { return __reduce_add_sync(device::whole_warp, sum); }
};

// fp32, in words of 8 bytes. How many tiles a look takes in differs from run to run, and with it how the sum is rounded.
struct Reals {
  using Word = unsigned long long;
  using Sum = float;
  static __device__ Word word(unsigned flag, Sum sum) { return Word{flag} << 32 | __float_as_uint(sum); }
  static __device__ unsigned flag_of(Word word) { return static_cast<unsigned>(word >> 32); }
  static __device__ Sum sum_of(Word word) { return __uint_as_float(static_cast<unsigned>(word)); }
  static __device__ Sum sum_of_lanes(Sum sum) { return device::warp_sum(sum); }
};

template <class Word>
__device__ Word load(const Word* state) {
  return *static_cast<const volatile Word*>(state);
}
template <class Word>
__device__ void store(Word* state, Word value) {
  *static_cast<volatile Word*>(state) = value;
}

// Tells the sum of a tile (one thread): as soon as it is known, since all later tiles wait for it.
template <class Kind = Counts>
__device__ void tell(typename Kind::Word* states, int tile, typename Kind::Sum total) {
  store(states + tile, Kind::word(tile == 0 ? up_to_tile : of_tile, total));
}

// The sum of the tiles before `tile`, for all lanes of a warp. Looks at 32 tiles at a time, nearest first, until one knows the
// rest; then tells the sum up to this tile. Pauses between two looks: hundreds of warps that ask for the same few lines without
// a pause would delay the answers.
template <class Kind = Counts>
__device__ typename Kind::Sum sum_before(typename Kind::Word* states, int tile, typename Kind::Sum total) {
  if (tile == 0) return 0;
  const int lane = static_cast<int>(device::lane_index());
  typename Kind::Sum sum = 0;
  unsigned known = 0;
  for (int nearest = tile - 1; known == 0; nearest -= 32) {
    const typename Kind::Word* state = states + nearest - lane;
    typename Kind::Word told = nearest >= lane ? load(state) : Kind::word(up_to_tile, 0);
    while (true) {
      const unsigned missing = __ballot_sync(device::whole_warp, Kind::flag_of(told) == 0);
      known = __ballot_sync(device::whole_warp, Kind::flag_of(told) == up_to_tile);
      const unsigned up_to_known = known ^ (known - 1);  // the lanes up to the first that knows the rest; all when none does
      if ((missing & up_to_known) == 0) break;
      __nanosleep(200);
      if (Kind::flag_of(told) == 0) told = load(state);
    }
    const bool counts = known == 0 || lane < __ffs(static_cast<int>(known));
    sum += Kind::sum_of_lanes(counts ? Kind::sum_of(told) : 0);
  }
  if (lane == 0) store(states + tile, Kind::word(up_to_tile, sum + total));
  return sum;
}

}  // namespace aisp::look_back
