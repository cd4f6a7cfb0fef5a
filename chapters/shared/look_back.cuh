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

// The sum of the tiles before `tile`, for all lanes of a warp; tells the sum of this one (`total`) first and the sum up to it
// afterwards. Goes back, nearest first, until a tile knows the rest. A warp looks at 128 tiles at a time, since how far back it
// must look grows with the time that each look takes.
__device__ inline unsigned sum_before(unsigned* states, int tile, unsigned total) {
  constexpr int looks = 4;
  const int lane = static_cast<int>(device::lane_index());
  if (lane == 0 && tile > 0) store(states + tile, of_tile | total);
  unsigned sum = 0, known = 0;
  for (int nearest = tile - 1 - lane; known == 0; nearest -= looks * 32) {
    unsigned state[looks];
#pragma unroll
    for (int i = 0; i < looks; ++i) state[i] = nearest - i * 32 >= 0 ? load(states + nearest - i * 32) : up_to_tile;
#pragma unroll
    for (int i = 0; i < looks; ++i) {
      if (known != 0) break;
      while (__any_sync(device::whole_warp, state[i] == 0))
        if (state[i] == 0) state[i] = load(states + nearest - i * 32);
      known = __ballot_sync(device::whole_warp, state[i] >= up_to_tile);
      const bool counts = known == 0 || lane < __ffs(static_cast<int>(known));
      sum += __reduce_add_sync(device::whole_warp, counts ? state[i] & sum_bits : 0);
    }
  }
  if (lane == 0) store(states + tile, up_to_tile | (sum + total));
  return sum;
}

}  // namespace aisp::look_back
