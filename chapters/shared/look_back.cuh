// SPDX-License-Identifier: Apache-2.0
// Running sums across blocks in one pass: each block tells the sum of its tile as soon as it has it, adds up what the tiles
// before it have told, and tells the result (Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back,
// 2016). Tiles must be handed out in order (by a ticket counter), so that those that a block waits for are finished or in work.
// One word a tile, zeroed before the kernel; sums stay below 2^30.
#pragma once
#include <aisp/device/reduce.cuh>

namespace aisp::look_back {

// Nothing told yet (0), the sum of the tile, or the sum up to and with it. Flag and sum are one word, so that no order between
// two accesses is needed.
constexpr unsigned of_tile = 1u << 30, up_to_tile = 2u << 30, sum_bits = of_tile - 1;

__device__ inline unsigned load(const unsigned* state) { return *static_cast<const volatile unsigned*>(state); }
__device__ inline void store(unsigned* state, unsigned value) { *static_cast<volatile unsigned*>(state) = value; }

// Tells the sum of a tile (one thread): as soon as it is known, since all later tiles wait for it.
__device__ inline void tell(unsigned* states, int tile, unsigned total) {
  store(states + tile, (tile == 0 ? up_to_tile : of_tile) | total);
}

// The sum of the tiles before `tile`, for all lanes of a warp. Looks at 32 tiles at a time, nearest first, until one knows the
// rest; then tells the sum up to this tile. Pauses between two looks: hundreds of warps that ask for the same few lines without
// a pause would delay the answers.
__device__ inline unsigned sum_before(unsigned* states, int tile, unsigned total) {
  if (tile == 0) return 0;
  const int lane = static_cast<int>(device::lane_index());
  unsigned sum = 0, known = 0;
  for (int nearest = tile - 1; known == 0; nearest -= 32) {
    const unsigned* state = states + nearest - lane;
    unsigned told = nearest >= lane ? load(state) : up_to_tile;
    while (true) {
      const unsigned missing = __ballot_sync(device::whole_warp, told == 0);
      known = __ballot_sync(device::whole_warp, told >= up_to_tile);
      const unsigned up_to_known = known ^ (known - 1);  // the lanes up to the first that knows the rest; all when none does
      if ((missing & up_to_known) == 0) break;
      __nanosleep(200);
      if (told == 0) told = load(state);
    }
    const bool counts = known == 0 || lane < __ffs(static_cast<int>(known));
    sum += __reduce_add_sync(device::whole_warp, counts ? told & sum_bits : 0);
  }
  if (lane == 0) store(states + tile, up_to_tile | (sum + total));
  return sum;
}

}  // namespace aisp::look_back
