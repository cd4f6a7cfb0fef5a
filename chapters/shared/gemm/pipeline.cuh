// SPDX-License-Identifier: Apache-2.0
// The ring of stages between the warpgroup that loads and those that multiply, and everything that is known when the kernel is
// compiled.
#pragma once
#include <aisp/device/cluster.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/warpgroup.cuh>

#include <type_traits>

#include "operands.cuh"
#include "shape.cuh"

namespace aisp::gemm {

constexpr int warpgroup_threads = 128;

// Made on the host (gemm.hpp).
struct Maps {
  CUtensorMap a, b, c, extra;  // c: boxes of stores by TMA; extra: the scales of A for BlockScaled, or the other matrix
};

// Maps of a main loop with a second pair of operands, and of one without.
struct MapsOfTwoParts : Maps {
  CUtensorMap a2, b2;
};
template <class Mainloop>
constexpr bool has_two_parts = requires {
  Mainloop::two_parts;
};
template <class Mainloop>
constexpr bool adds_integers = requires {
  Mainloop::integers;
};
template <class Mainloop>
using MapsFor = std::conditional_t<has_two_parts<Mainloop>, MapsOfTwoParts, Maps>;

// A consumer's sums are `parts` times 64 rows with all columns of the tile.
template <class A_, class B_, class Mainloop_, Shape shape>
struct Config {
  using A = A_;
  using B = B_;
  using Mainloop = Mainloop_;
  using Maps = MapsFor<Mainloop>;
  static constexpr device::Operands operands = Product<typename A::Factor, typename B::Factor>::operands;
  static constexpr int tile_m = shape.tile_m, tile_n = shape.tile_n, tile_k = A::tile_k, stages = shape.stages;
  static constexpr int consumers = shape.consumers, cluster = shape.cluster;
  static constexpr bool pingpong = shape.pingpong;
  // Whether the kernel may begin before its predecessor has ended, which writes B or what an epilogue reads, and not A.
  static constexpr bool begins_early = false;
  static constexpr int rows = pingpong ? tile_m : tile_m / consumers, parts = rows / 64;
  static constexpr int threads = (consumers + 1) * warpgroup_threads;
  // Every thread of a block starts with an equal share of the registers; the producer gives most of its own to the consumers.
  // With one consumer the share is as much as a thread can have.
  static constexpr int producer_registers = consumers >= 3 ? 32 : 40;
  static constexpr int consumer_registers = consumers == 4 ? 112 : consumers == 3 ? 160 : 232;

  static_assert(sizeof(typename A::Factor) == sizeof(typename B::Factor));
  static_assert(consumers >= 1 && consumers <= 4 && (!pingpong || consumers == 2), "two warpgroups take turns");
  static_assert(parts >= 1 && tile_m == parts * 64 * (pingpong ? 1 : consumers), "each consumer has a multiple of 64 rows");
  static_assert(tile_m <= 256 && tile_n <= 256 && tile_n % 8 == 0, "a box of TMA has at most 256 rows, wgmma as many columns");
  static_assert(cluster == 1 || (cluster == 2 && tile_n % (B::major == Major::k ? 16 : 128) == 0), "each block loads half of B");
  static_assert(parts * tile_n / 2 + Mainloop::template extra_sums<tile_n> <= (consumers == 4   ? 80
                                                                               : consumers == 3 ? 128
                                                                                                : 200),
                "the sums of a thread do not fit into its registers");

  // Returns the steps of tile_k in K.
  template <class Tile>
  static __device__ __forceinline__ int steps(const Tile& tile) {
    return (tile.k_end - tile.k + tile_k - 1) / tile_k;
  }
};

// At the beginning of dynamic shared memory, aligned to 1024 bytes. full[s]: the bytes of stage s have come; empty[s]: its
// readers are done with it.
template <class C>
struct Ring {
  using A = typename C::A;
  using B = typename C::B;
  static constexpr bool scaled = C::Mainloop::scaled;
  // A box with the scales of the tile's rows begins at a multiple of four rows, so it has four more; rounded to what TMA aligns
  // to.
  static constexpr int scale_box = C::tile_m + 4, scale_rows = scaled ? C::tile_m + 32 : 1;
  static constexpr unsigned stage_bytes =
      A::template tile_bytes<C::tile_m> + C::tile_n * 128 + (scaled ? scale_box * sizeof(float) : 0);
  static_assert(!scaled || scale_box <= 256, "a box of TMA has at most 256 elements along a row");

  alignas(1024) typename A::Element a[C::stages][A::template tile_elements<C::tile_m>];
  alignas(1024) typename B::Element b[C::stages][C::tile_n * C::tile_k];
  alignas(128) float a_scales[scaled ? C::stages : 1][scale_rows];
  std::uint64_t full[C::stages], empty[C::stages];

  // By one thread, before a __syncthreads or cluster barrier.
  __device__ void init() {
    // In the ping-pong one consumer of each block reads a stage. A stage that multicast fills is written by both blocks.
    constexpr int readers = (C::pingpong ? 1 : C::consumers) * C::Mainloop::arrivals * C::cluster;
    for (int stage = 0; stage < C::stages; ++stage) {
      device::barrier_init(&full[stage], 1);
      device::barrier_init(&empty[stage], readers);
    }
    device::fence_barrier_init();
  }

  // By all threads of a consumer. A wait for products covers the tensor cores' reads of the whole warpgroup, so one arrival does,
  // and it has nothing to release. It covers no other warp's ordinary reads: with scales or packed codes in the stage each warp
  // arrives.
  __device__ __forceinline__ void give_back(int stage) {
    static_assert(C::Mainloop::arrivals == 1 || C::Mainloop::arrivals == 4);
    if constexpr (C::Mainloop::arrivals == 4) __syncwarp();
    const unsigned t = threadIdx.x % (warpgroup_threads / C::Mainloop::arrivals);
    if constexpr (C::cluster == 1) {
      if (t == 0) device::barrier_arrive(&empty[stage]);
    } else if constexpr (C::Mainloop::arrivals == 1) {
      if (t < C::cluster) device::barrier_arrive_remote_relaxed(&empty[stage], t);
    } else if (t < C::cluster) {
      // Data read so comes from the own block's producer alone, which must not overtake the reads.
      if (t == device::cluster_rank()) device::barrier_arrive(&empty[stage]);
      else device::barrier_arrive_remote_relaxed(&empty[stage], t);
    }
  }
};

// The place of a producer or a consumer in the ring; runs on from tile to tile.
template <class C>
struct Cursor {
  int stage = 0;
  unsigned phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage < C::stages) return;
    stage = 0;
    phase ^= 1;
  }
  // Past the stages of a tile that the other consumer of a ping-pong reads.
  __device__ __forceinline__ void skip(int steps) {
    const int end = stage + steps;
    phase ^= end / C::stages & 1;
    stage = end % C::stages;
  }
};

// Starts the copies of a stage but for A's. Groups of B lie one after the other: rows of B[group][n][k], or columns of
// B[group][k][n]. In a cluster each block asks for half of B, for both.
template <class C, class Tile, class Extent>
__device__ __forceinline__ void load_others(Ring<C>& ring, int stage, const Maps& maps, const Extent& extent, const Tile& tile,
                                            int k, unsigned rank) {
  using B = typename C::B;
  std::uint64_t* const full = &ring.full[stage];
  int n = tile.n, b_k = k;
  if constexpr (B::major == Major::k) n += tile.group * extent.n;
  else b_k += tile.group * extent.k;
  if constexpr (C::cluster == 1) B::template load<C::tile_n>(ring.b[stage], &maps.b, n, b_k, full);
  else {
    constexpr int half = C::tile_n / 2;
    B::template load<half>(ring.b[stage] + rank * (half * C::tile_k), &maps.b, n + static_cast<int>(rank) * half, b_k, full,
                           0b11);
  }
  if constexpr (Ring<C>::scaled) device::tensor_load_2d(ring.a_scales[stage], &maps.extra, tile.m & ~3, k / C::tile_k, full);
}

// Fills the next stage, when its readers have left it, with 128 bytes of K from `k` on. By one thread. load_a(to, full) starts
// the copy of A, which in a cluster is each block's own.
template <class C, class Tile, class Extent, class LoadA>
__device__ __forceinline__ void load_stage(Ring<C>& ring, Cursor<C>& at, const Maps& maps, const Extent& extent, const Tile& tile,
                                           int k, unsigned rank, const LoadA& load_a) {
  device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
  std::uint64_t* const full = &ring.full[at.stage];
  device::barrier_arrive_expect(full, Ring<C>::stage_bytes);
  load_a(ring.a[at.stage], full);
  load_others(ring, at.stage, maps, extent, tile, k, rank);
  at.next();
}

}  // namespace aisp::gemm
