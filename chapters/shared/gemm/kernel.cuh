// SPDX-License-Identifier: Apache-2.0
// The kernel: one warpgroup loads, one to four multiply and store, and a block goes on from tile to tile. What it multiplies, in
// what order, and what becomes of the results is left to the types that it is given.
#pragma once
#include <aisp/device/fence.cuh>

#include "exchange.cuh"
#include "integers.cuh"
#include "mainloop.cuh"
#include "packed.cuh"

namespace aisp::gemm {

// In dynamic shared memory: the ring, after it what each warp of the consumers stages its results in, and after that a barrier
// for each of these warps where they wait for another matrix.
template <class C, class Epilogue, class Store>
constexpr unsigned staging_bytes = Store::template staging_bytes<C::tile_n / Epilogue::narrowing>*(exchanges<Store> ? C::parts
                                                                                                                    : 1);
template <class C, class Epilogue, class Store>
constexpr unsigned shared_bytes = sizeof(Ring<C>) + C::consumers * 4 *
                                                        (staging_bytes<C, Epilogue, Store> +
                                                         (exchanges<Store> ? sizeof(std::uint64_t) : 0));

namespace detail {

// Barrier 1 + w is met by warpgroup w, which waits, and the other one, which lets it go on; barrier 4 + w by the warps of
// warpgroup w, at the end of a tile.
constexpr int meeting_barrier = 4;
__device__ __forceinline__ void wait_for_turn(int warpgroup) { device::named_barrier_sync(1 + warpgroup, 2 * warpgroup_threads); }
__device__ __forceinline__ void give_turn_to(int warpgroup) {
  device::named_barrier_arrive(1 + warpgroup, 2 * warpgroup_threads);
}

// The stages of a tile, of all parts.
template <class C>
__device__ __forceinline__ int steps_of(const typename C::Mainloop& mainloop, const Tile& tile) {
  if constexpr (has_two_parts<typename C::Mainloop>) return C::steps(tile) + mainloop.more_steps();
  else return C::steps(tile);
}
template <class C, class Schedule>
__device__ __forceinline__ void load_tile(Ring<C>& ring, Cursor<C>& at, const typename C::Maps& maps, const Schedule& schedule,
                                          const typename C::Mainloop& mainloop, const Tile& tile, unsigned rank) {
  using A = typename C::A;
  if constexpr (Schedule::windows) {
    auto window = schedule.first_window(tile);
    for (int k = tile.k; k < tile.k_end; k += C::tile_k) {
      load_stage(ring, at, maps, schedule.extent, tile, k, rank, [&](typename A::Element* to, std::uint64_t* full) {
        device::tensor_load_4d(to, &maps.a, window.channel, window.x, window.y, window.image, full);
      });
      schedule.template move<C>(window);
    }
  } else {
    for (int k = tile.k; k < tile.k_end; k += C::tile_k)
      load_stage(ring, at, maps, schedule.extent, tile, k, rank, [&](typename A::Element* to, std::uint64_t* full) {
        A::template load<C::tile_m>(to, &maps.a, tile.m, k, full);
      });
  }
  if constexpr (has_two_parts<typename C::Mainloop>) mainloop.load(ring, at, maps, tile, rank);
}

// The tiles of a cluster: first, first + stride, ... until the schedule has no more.
struct Walk {
  int first, stride;
};

// Fills the ring for the first time: with A before its predecessor has ended, with the rest after it. How many stages that
// were.
template <class C, class Schedule>
__device__ __forceinline__ int load_early(Ring<C>& ring, const Maps& maps, const Schedule& schedule, const Walk& walk,
                                          int block_row, unsigned rank) {
  static_assert(!Schedule::windows && !Schedule::ragged && !C::Mainloop::scaled, "A alone is known before");
  const auto for_each_stage = [&](const auto& visit) {
    int stage = 0;
    Tile tile;
    for (int index = walk.first; stage < C::stages && schedule.template at<C>(index, tile); index += walk.stride) {
      tile.m += block_row;
      for (int k = tile.k; stage < C::stages && k < tile.k_end; k += C::tile_k) visit(stage++, tile, k);
    }
    return stage;
  };
  const int filled = for_each_stage([&](int stage, const Tile& tile, int k) {
    device::barrier_arrive_expect(&ring.full[stage], Ring<C>::stage_bytes);
    C::A::template load<C::tile_m>(ring.a[stage], &maps.a, tile.m, k, &ring.full[stage]);
  });
  device::wait_for_previous_kernel();
  for_each_stage([&](int stage, const Tile& tile, int k) { load_others(ring, stage, maps, schedule.extent, tile, k, rank); });
  return filled;
}

// A consumer's arguments, and its work on a tile's sums.
template <class C, class Schedule, class Epilogue, class Store>
struct Consumer {
  Ring<C>& ring;
  const Maps& maps;
  const Schedule& schedule;
  const typename C::Mainloop& mainloop;
  const Epilogue& epilogue;
  const Store& store;
  unsigned char* staging;
  int warpgroup, warp_row;
  std::uint64_t* other_came;  // this warp's boxes of the other matrix, where there is one

  using Sums = float[C::parts][C::tile_n / 2];

  // Returns this warp's fragment of the tile's rows from `row` on.
  __device__ __forceinline__ Fragment fragment(const Tile& tile, int row) const {
    if constexpr (Schedule::windows) {
      const auto rows = schedule.rows_of(tile, row);
      return {rows.first, tile.n, rows.end, schedule.extent.n, tile.group, tile.slice};
    } else return {tile.m + row, tile.n, tile.m_end, schedule.extent.n, tile.group, tile.slice};
  }

  // `tile` is this block's, `first_row` where in it this consumer's rows begin.
  __device__ __forceinline__ void finish(Sums& sums, const Tile& tile, int first_row) const {
#pragma unroll
    for (int part = 0; part < C::parts; ++part) {
      const Fragment at = fragment(tile, first_row + part * 64 + warp_row);
      epilogue(sums[part], at);
      store.put(narrowed<Epilogue::narrowing>(sums[part]), at.narrowed(Epilogue::narrowing), staging, maps.c);
    }
  }

  // The same with another matrix, which fetch_other has asked for before the tile was multiplied.
  static constexpr unsigned part_bytes = staging_bytes<C, Epilogue, Store> / C::parts;
  __device__ __forceinline__ void fetch_other(const Tile& tile, int first_row) const {
    if (device::lane_index() != 0) return;
    Store::template expect<C::tile_n, C::parts>(other_came);
#pragma unroll
    for (int part = 0; part < C::parts; ++part)
      Store::template fetch<C::tile_n>(fragment(tile, first_row + part * 64 + warp_row), staging + part * part_bytes, maps.extra,
                                       other_came);
  }
  __device__ __forceinline__ void finish_with_other(Sums& sums, const Tile& tile, int first_row, unsigned phase) const {
    static_assert(Epilogue::narrowing == 1, "results take the place of the other matrix");
    typename Epilogue::template Kept<C::tile_n> kept;
    device::barrier_wait(other_came, phase);
#pragma unroll
    for (int part = 0; part < C::parts; ++part) {
      const Fragment at = fragment(tile, first_row + part * 64 + warp_row);
      unsigned char* const boxes = staging + part * part_bytes;
      epilogue(sums[part], at, OtherRows<C::tile_n>{device::shared_address(boxes)}, kept);
      if (part + 1 == C::parts) {
        unsigned char* const of_first = boxes - warp_row / 16 * staging_bytes<C, Epilogue, Store>;
        epilogue.template end_tile<C::tile_n>(
            kept, fragment(tile, first_row),
            {reinterpret_cast<float*>(of_first), staging_bytes<C, Epilogue, Store> / sizeof(float), meeting_barrier + warpgroup});
      }
      store.put(sums[part], at, boxes, maps.c);
    }
  }

  // All consumers on one tile.
  __device__ __forceinline__ void share_tiles(const Walk& walk, int block_row) const {
    Cursor<C> at;
    Sums sums;
    Tile tile;
    [[maybe_unused]] unsigned phase = 0;
    const int first_row = warpgroup * C::rows;
    for (int index = walk.first; schedule.template at<C>(index, tile); index += walk.stride) {
      tile.m += block_row;
      if constexpr (exchanges<Store>) fetch_other(tile, first_row);
      mainloop.multiply(ring, at, tile, first_row, sums, [] {});
      if constexpr (exchanges<Store>) {
        finish_with_other(sums, tile, first_row, phase);
        phase ^= 1;
      } else finish(sums, tile, first_row);
    }
  }

  // Warpgroup 0 computes the first, third, fifth ... tile of the walk, warpgroup 1 the others. The ring's stages come in the
  // order of the tiles. Every tile but the walk's first waits for a turn, and every tile but its last gives one.
  __device__ __forceinline__ void take_turns(const Walk& walk, int block_row) const {
    Cursor<C> at;
    Sums sums;
    Tile tile, other;
    [[maybe_unused]] unsigned phase = 0;
    if (warpgroup == 1 && schedule.template at<C>(walk.first, other)) at.skip(steps_of<C>(mainloop, other));
    for (int index = walk.first + warpgroup * walk.stride; schedule.template at<C>(index, tile); index += 2 * walk.stride) {
      if constexpr (exchanges<Store>) {
        Tile own = tile;
        own.m += block_row;
        fetch_other(own, 0);
      }
      if (index >= walk.stride) wait_for_turn(warpgroup);
      const bool more = schedule.template at<C>(index + walk.stride, other);
      tile.m += block_row;
      mainloop.multiply(ring, at, tile, 0, sums, [more, this] {
        if (more) give_turn_to(1 - warpgroup);
      });
      if (more) at.skip(steps_of<C>(mainloop, other));
      if constexpr (exchanges<Store>) {
        finish_with_other(sums, tile, 0, phase);
        phase ^= 1;
      } else finish(sums, tile, 0);
    }
  }
};

}  // namespace detail

template <class C, class Schedule, class Epilogue, class Store>
__global__ __launch_bounds__(C::threads, 1) void gemm_kernel(const __grid_constant__ typename C::Maps maps,
                                                             const Schedule schedule, const typename C::Mainloop mainloop,
                                                             const Epilogue epilogue, const Store store) {
  static_assert(!Schedule::ragged || (Store::predicated && !Store::any_width),
                "a tile's last rows may be another group's: RowsStore leaves them alone");
  static_assert(!Schedule::windows || (C::A::major == Major::k && C::B::major == Major::k && !C::Mainloop::scaled),
                "windows lie along K, and so does the filter");
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring<C>& ring = *reinterpret_cast<Ring<C>*>(memory);
  constexpr unsigned staging_bytes_of_all = C::consumers * 4 * staging_bytes<C, Epilogue, Store>;
  [[maybe_unused]] auto* const others_came = reinterpret_cast<std::uint64_t*>(memory + sizeof(Ring<C>) + staging_bytes_of_all);
  if (threadIdx.x == 0) {
    device::prefetch_tensor_map(&maps.a);
    device::prefetch_tensor_map(&maps.b);
    if constexpr (!Store::predicated) device::prefetch_tensor_map(&maps.c);
    if constexpr (exchanges<Store>) {
      device::prefetch_tensor_map(&maps.extra);
      for (int warp = 0; warp < C::consumers * 4; ++warp) device::barrier_init(others_came + warp, 1);
    }
    ring.init();
  }
  unsigned rank = 0;
  if constexpr (C::cluster == 1) __syncthreads();
  else {
    device::cluster_arrive_relaxed();  // initialising has released the barriers
    device::cluster_wait();
    rank = device::cluster_rank();
  }

  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if constexpr (Schedule::partial) device::let_dependents_start();  // what adds up the parts
  const detail::Walk walk{static_cast<int>(blockIdx.x / C::cluster), static_cast<int>(gridDim.x / C::cluster)};
  const int block_row = static_cast<int>(rank) * C::tile_m;
  if (warpgroup == C::consumers) {
    if constexpr (C::consumers > 1) device::give_up_registers<C::producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) {
      Cursor<C> at;
      Tile tile;
      [[maybe_unused]] int filled = 0;
      if constexpr (C::begins_early) {
        filled = detail::load_early<C>(ring, maps, schedule, walk, block_row, rank);
        at.skip(filled);
      }
      for (int index = walk.first; schedule.template at<C>(index, tile); index += walk.stride) {
        tile.m += block_row;
        if constexpr (C::begins_early) {
          const int steps = min(filled, C::steps(tile));
          filled -= steps;
          tile.k += steps * C::tile_k;
        }
        detail::load_tile<C>(ring, at, maps, schedule, mainloop, tile, rank);
      }
    }
  } else {
    if constexpr (C::consumers > 1) device::take_registers<C::consumer_registers>();
    if constexpr (C::begins_early) device::wait_for_previous_kernel();
    unsigned char* const staging = memory + sizeof(Ring<C>) + warp * staging_bytes<C, Epilogue, Store>;
    const detail::Consumer<C, Schedule, Epilogue, Store> consumer{ring,  maps,    schedule,  mainloop,      epilogue,
                                                                  store, staging, warpgroup, warp % 4 * 16, others_came + warp};
    if constexpr (C::pingpong) consumer.take_turns(walk, block_row);
    else consumer.share_tiles(walk, block_row);
    Store::finish();
  }
  if constexpr (C::cluster > 1) device::cluster_sync();  // the other block's loads and arrivals still come here
}

// Adds the slices of a workspace [slice][m][n], from the first to the last, and goes on as gemm_kernel does with its sums: 64
// rows and tile_n columns a block. It begins while slices are still being summed, and waits.
template <int tile_n, class Epilogue, class Store>
__global__ __launch_bounds__(warpgroup_threads) void sum_slices_kernel(const float* workspace, int slices, int m, int n,
                                                                       const Epilogue epilogue, const Store store) {
  static_assert(Store::predicated, "there is no staging for TMA here");
  const Fragment at{static_cast<int>(blockIdx.y) * 64 + static_cast<int>(threadIdx.x) / 32 * 16,
                    static_cast<int>(blockIdx.x) * tile_n, m, n, 0};
  float sums[tile_n / 2];
#pragma unroll
  for (int i = 0; i < tile_n / 2; ++i) sums[i] = 0;
  device::wait_for_previous_kernel();
#pragma unroll 4
  for (int slice = 0; slice < slices; ++slice) {
    const float* const part = workspace + static_cast<std::size_t>(slice) * m * n;
#pragma unroll
    for (int i = 0; i < tile_n / 2; ++i) {
      if (at.exists(i)) sums[i] += part[static_cast<std::size_t>(at.row(i)) * n + at.column(i)];
    }
  }
  epilogue(sums, at);
  store.put(narrowed<Epilogue::narrowing>(sums), at.narrowed(Epilogue::narrowing), nullptr, CUtensorMap{});
}

// Columns of a tile that a block of sum_parts_kernel has. If few tiles have parts, several blocks share each.
template <class Ranges, int tile_n>
constexpr int sum_columns = (Ranges::few_parts && tile_n % 64 == 0) ? 64 : tile_n;

// Adds the parts that `ranges` (KRanges or LastRoundInRanges) have left of the tile in which range blockIdx.x + 1 begins, if it
// is the first that begins inside of that tile; 64 rows and sum_columns a block.
template <class C, class Ranges, class Epilogue, class Whole>
__global__ __launch_bounds__(warpgroup_threads) void sum_parts_kernel(const Ranges ranges, const Epilogue epilogue,
                                                                      const WholeOrPart<Whole, C::tile_m * C::cluster> store) {
  const auto& cut = ranges.cut();
  const int second = static_cast<int>(blockIdx.x) + 1, number = cut.begin(second) / ranges.steps;
  const int begin = number * ranges.steps, end = begin + ranges.steps;
  device::wait_for_previous_kernel();  // all blocks: the kernel after this one waits for this one alone
  if (cut.begin(second) == begin || cut.begin(second - 1) > begin) return;
  const Tile tile = ranges.template whole_tile<C>(number);
  const int in_tile = static_cast<int>(blockIdx.y * 64 + threadIdx.x / 32 * 16);
  constexpr int columns = sum_columns<Ranges, C::tile_n>, count = columns / 2;
  const int before = columns < C::tile_n ? static_cast<int>(blockIdx.z) * columns : 0;
  const Fragment at{tile.m + in_tile, tile.n + before, tile.m_end, ranges.extent.n, tile.group};
  const int place_row = Ranges::ragged ? at.first_row : in_tile;  // a group's tiles begin anywhere
  float sums[count];
#pragma unroll
  for (float& sum : sums) sum = 0;
  const auto add = [&](int slot) {
    const float4* const from = store.parts + store.template place<C::tile_n / 2>(slot, place_row) + before / 2 * 8;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      const float4 part = from[i * 8];
      sums[i] += part.x, sums[i + 1] += part.y, sums[i + 2] += part.z, sums[i + 3] += part.w;
    }
  };
  add(KRanges::first_slot(second - 1));
  for (int range = second; range < ranges.clusters && cut.begin(range) < end; ++range) add(KRanges::later_slot(range));
  epilogue(sums, at);
  Whole{store.c}.put(sums, at, nullptr, CUtensorMap{});
}

}  // namespace aisp::gemm
