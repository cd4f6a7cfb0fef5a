// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 1536 x 3072 with K = 8192 (a down-projection of Llama-3.2-3B): 144 tiles of 128 x 256 for 132 SMs. Whole tiles
// take two waves, and the second leaves 120 SMs idle. Stream-K deals out steps along K instead: each SM gets 1/132 of all 18,432,
// and leaves its part of a tile that it began in the middle of in L2 for another. Dividing only the tiles of the second wave, and
// those first, hides the adding behind whole tiles. Yet 128 tiles of 192 x 192 fill one wave to 97 %, with nothing to add: look
// for such a tile first.
#include <aisp/device/fence.cuh>

#include <algorithm>

#include "gemm_clusters.cuh"
#include "gemm_workload.hpp"

namespace aisp::ch10 {
namespace {

using namespace gemm;
using Ring = gemm::Ring<128, 256, 4>;
using Epilogue = TmaStore<2>;
constexpr int consumers = 2;
constexpr int count = Ring::tile_n / 2, quads = count / 4;  // of a thread's sums
constexpr int partial_quads = quads * warpgroup_threads;    // of one warpgroup's 64 x 256 sums, as its threads hold them

// Steps of one tile that a block does in one go.
struct Segment {
  int tile, first, steps;
};

// The steps of all tiles, one tile after the other, are dealt out in equal shares; or the tiles are, whole. Who has the beginning
// of a tile waits for the blocks that have more of it, so that all must run at once: the launch is cooperative.
struct Shares {
  int tiles, tiles_in_row, steps;
  bool whole;

  __device__ int share() const { return static_cast<int>(gridDim.x - 1 - blockIdx.x); }
  __device__ int begin(int share) const {
    return static_cast<int>(static_cast<long long>(share) * tiles * steps / static_cast<int>(gridDim.x));
  }

  template <class Visit>
  __device__ __forceinline__ void segments(Visit visit) const {
    if (whole) {
      for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
        visit(Segment{tile, 0, steps});
      return;
    }
    const int end = begin(share() + 1);
    for (int at = begin(share()); at < end;) {
      const int tile = at / steps, first = at - tile * steps, todo = min(end - at, steps - first);
      visit(Segment{tile, first, todo});
      at += todo;
    }
  }
};

// Sums that wait in L2 for another block: of each share the tile that it goes on with.
struct Exchange {
  float4* partials;   // [shares][consumers][quads][threads]
  unsigned* arrived;  // [shares][consumers]
};

__device__ __forceinline__ bool is_leader() { return threadIdx.x % warpgroup_threads == 0; }

__device__ __forceinline__ void leave_sums(float4* to, const float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i)
    __stcg(to + i * warpgroup_threads, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }

// Adds up a tile in several segments: the block with its beginning adds the others, which came first in their blocks' shares.
// True when the sums are those of the whole tile now.
__device__ __forceinline__ bool complete(const Shares& shares, const Segment& segment, int warpgroup, float (&sums)[count],
                                         const Exchange& exchange) {
  const auto meet = [&] { device::named_barrier_sync(1 + warpgroup, warpgroup_threads); };
  const auto flag = [&](int share) { return exchange.arrived + share * consumers + warpgroup; };
  const auto place = [&](int share) {
    return exchange.partials + (static_cast<std::size_t>(share) * consumers + warpgroup) * partial_quads +
           threadIdx.x % warpgroup_threads;
  };
  if (segment.first > 0) {
    leave_sums(place(shares.share()), sums);
    meet();
    if (is_leader()) device::store_release_gpu(flag(shares.share()), 1);
    return false;
  }
  int have = segment.steps;
  for (int other = shares.share() + 1; have < shares.steps; ++other) {
    if (is_leader())
      while (device::load_acquire_gpu(flag(other)) != 1) {
      }
    meet();
    const float4* const from = place(other);
#pragma unroll
    for (int i = 0; i < quads; ++i) add(sums + 4 * i, __ldcg(from + i * warpgroup_threads));
    if (is_leader()) *flag(other) = 0;  // for the next run
    have += shares.begin(other + 1) - shares.begin(other);
  }
  return true;
}

__global__ __launch_bounds__(threads, 1) void stream_kernel(const __grid_constant__ CUtensorMap a,
                                                            const __grid_constant__ CUtensorMap b,
                                                            const __grid_constant__ CUtensorMap c_boxes, Shares shares,
                                                            Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<producer_registers>();
    if (!is_leader()) return;
    shares.segments([&](const Segment& segment) {
      const int top = segment.tile / shares.tiles_in_row * Ring::tile_m, left = segment.tile % shares.tiles_in_row * Ring::tile_n;
      for (int step = segment.first; step < segment.first + segment.steps; ++step)
        load_stage(ring, at, &a, &b, top, left, step * tile_k);
    });
    return;
  }
  device::take_registers<consumer_registers>();
  float sums[count];
  unsigned char* const staging = memory + sizeof(Ring) + warp * Epilogue::staging_bytes;
  shares.segments([&](const Segment& segment) {
    multiply_tile(ring, at, warpgroup * 64, segment.steps, sums);
    if (!complete(shares, segment, warpgroup, sums, exchange)) return;
    const int row = segment.tile / shares.tiles_in_row, column = segment.tile % shares.tiles_in_row;
    Epilogue::put(sums, staging, c_boxes, {nullptr, 0, row * Ring::tile_m + warp * 16, column * Ring::tile_n});
  });
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

// Only the tiles that would be left for another wave are divided along K. All SMs do their parts of them first, and whole tiles
// then; meanwhile three warps that have nothing else to do add up the parts. Tiles come in pairs, one above the other, for
// clusters of two blocks that share B.
namespace hybrid {

constexpr int pair_m = static_cast<int>(ranks) * Ring::tile_m;
constexpr int adders = 3;  // warps of the producer warpgroup that load nothing

// Cluster i does part i % ways of pair i / ways, when that is one of the `streamed`; then whole pairs.
struct Plan {
  TileOrder order;
  int streamed, ways, steps, n;

  __device__ int cluster() const { return static_cast<int>(blockIdx.x / ranks); }
  __device__ bool has_part() const { return cluster() < streamed * ways; }
  __device__ Segment part() const {
    const int number = cluster() % ways, first = number * steps / ways;
    return {cluster() / ways, first, (number + 1) * steps / ways - first};
  }
  __device__ int row_of(int pair, unsigned rank) const {
    return order[pair].row * pair_m + static_cast<int>(rank) * Ring::tile_m;
  }
  __device__ int column_of(int pair) const { return order[pair].column * Ring::tile_n; }
  template <class Visit>
  __device__ __forceinline__ void whole_pairs(Visit visit) const {
    for (int pair = streamed + cluster(); pair < order.count(); pair += static_cast<int>(gridDim.x / ranks))
      visit(Segment{pair, 0, steps});
  }
};

// The sums of one warpgroup of one block.
__device__ __forceinline__ float4* place(const Exchange& exchange, int cluster, unsigned rank, int warpgroup) {
  return exchange.partials +
         ((static_cast<std::size_t>(cluster) * ranks + rank) * consumers + static_cast<unsigned>(warpgroup)) * partial_quads;
}

// The consumers do not wait for their sums to arrive in L2; a warp that has the time does, and says so.
constexpr int parts_barrier = 1, parts_threads = consumers * warpgroup_threads + 32;

// By the adders of all blocks that have a part of a tile: each adds up units of 16 rows of 32 columns. `arrived` and `added`
// count blocks and warps, and are zero afterwards.
__device__ __forceinline__ void add_parts(const Plan& plan, const Exchange& exchange, unsigned rank, bf16* c) {
  constexpr int units_across = Ring::tile_n / 32, units = Ring::tile_m / 16 * units_across;
  const int lane = static_cast<int>(device::lane_index()), warp = static_cast<int>(threadIdx.x) % warpgroup_threads / 32;
  const Segment part = plan.part();
  const int first = part.tile * plan.ways, top = plan.row_of(part.tile, rank), left = plan.column_of(part.tile);
  unsigned* const arrived = exchange.arrived + (static_cast<unsigned>(part.tile) * ranks + rank) * 2;
  unsigned* const added = arrived + 1;
  if (warp == 1) device::named_barrier_sync(parts_barrier, parts_threads);
  if (lane == 0) {
    if (warp == 1) device::add_release_gpu(arrived, 1);
    while (device::load_acquire_gpu(arrived) != static_cast<unsigned>(plan.ways)) __nanosleep(100);
  }
  __syncwarp();
  for (int unit = (plan.cluster() - first) * adders + warp - 1; unit < units; unit += plan.ways * adders) {
    const int band = unit / units_across, group = unit % units_across;  // as warp `band` of the consumers held them
    float sums[16] = {};
#pragma unroll 1
    for (int cluster = first; cluster < first + plan.ways; ++cluster) {
      const float4* const from = place(exchange, cluster, rank, band / 4) + band % 4 * 32 + lane;
#pragma unroll
      for (int i = 0; i < 4; ++i) add(sums + 4 * i, __ldcg(from + (group * 4 + i) * warpgroup_threads));
    }
    // It adds 16 rows for each warp before the calling one; below zero the sum wraps around and back.
    store_sectors(sums, c, plan.n, static_cast<std::size_t>(top + (band - warp) * 16), left + group * 32);
  }
  __syncwarp();
  if (lane == 0 && atomicAdd(added, 1) == static_cast<unsigned>(plan.ways * adders) - 1) *arrived = *added = 0;
}

__global__ __launch_bounds__(threads, 1) void hybrid_kernel(const __grid_constant__ CUtensorMap a,
                                                            const __grid_constant__ CUtensorMap half_b,
                                                            const __grid_constant__ CUtensorMap c_boxes, bf16* c, Plan plan,
                                                            Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers * ranks);
  device::cluster_sync();

  Cursor<Ring> at;
  const unsigned rank = device::cluster_rank();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<56>();
    if (warp % 4 > 0) {
      if (plan.has_part()) add_parts(plan, exchange, rank, c);
    } else if (threadIdx.x % 32 == 0) {
      const auto load = [&](const Segment& segment) {
        for (int step = segment.first; step < segment.first + segment.steps; ++step)
          load_shared_stage(ring, at, &a, &half_b, plan.row_of(segment.tile, rank), plan.column_of(segment.tile), step * tile_k,
                            rank);
      };
      if (plan.has_part()) load(plan.part());
      plan.whole_pairs(load);
    }
  } else {
    device::take_registers<224>();
    // They have only read the stage, so there is nothing to release.
    const auto give_back = [&ring](int stage) {
      const unsigned t = threadIdx.x % warpgroup_threads;
      if (t < ranks) device::barrier_arrive_remote_relaxed(&ring.empty[stage], t);
    };
    float sums[count];
    if (plan.has_part()) {
      multiply_tile(ring, at, warpgroup * 64, plan.part().steps, sums, give_back);
      leave_sums(place(exchange, plan.cluster(), rank, warpgroup) + threadIdx.x % warpgroup_threads, sums);
      device::named_barrier_arrive(parts_barrier, parts_threads);
    }
    unsigned char* const staging = memory + sizeof(Ring) + warp * Epilogue::staging_bytes;
    plan.whole_pairs([&](const Segment& segment) {
      multiply_tile(ring, at, warpgroup * 64, segment.steps, sums, give_back);
      Epilogue::put(sums, staging, c_boxes,
                    {c, plan.n, plan.row_of(segment.tile, rank) + warp * 16, plan.column_of(segment.tile)});
    });
    device::wait_stores_read<0>();  // they still read this block's shared memory
  }
  device::cluster_sync();  // the other block's loads and arrivals still come here
}

}  // namespace hybrid

// Tiles of 192 x 192: three consumers of 64 rows, each with 96 sums a thread. For 64 steps of K one loads what a tile of 128 x
// 256 does (48 KB) and multiplies an eighth more.
namespace square {

using Ring = gemm::Ring<192, 192, 4>;
using Epilogue = TmaStore<1>;
constexpr int consumers = 3, threads = (consumers + 1) * warpgroup_threads, count = Ring::tile_n / 2;
constexpr unsigned staged_ring_bytes = sizeof(Ring) + consumers * 4 * Epilogue::staging_bytes;

// The part of a tile beyond the edges of the matrices is loaded as zeros and not stored.
__global__ __launch_bounds__(threads, 1) void square_kernel(const __grid_constant__ CUtensorMap a,
                                                            const __grid_constant__ CUtensorMap b,
                                                            const __grid_constant__ CUtensorMap c_boxes, int steps,
                                                            int tiles_in_row, int tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers);
  __syncthreads();

  Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<32>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
      for (int step = 0; step < steps; ++step)
        load_stage(ring, at, &a, &b, tile / tiles_in_row * Ring::tile_m, tile % tiles_in_row * Ring::tile_n, step * tile_k);
    return;
  }
  device::take_registers<160>();
  float sums[count];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    multiply_tile(ring, at, warpgroup * 64, steps, sums);
    Epilogue::put(sums, memory + sizeof(Ring) + warp * Epilogue::staging_bytes, c_boxes,
                  {nullptr, 0, tile / tiles_in_row * Ring::tile_m + warp * 16, tile % tiles_in_row * Ring::tile_n});
  }
  device::wait_stores_read<0>();  // they still read this block's shared memory
}

}  // namespace square

class StreamKMatmul final : public GemmWorkload {
 public:
  explicit StreamKMatmul(Setup& setup)
      : GemmWorkload{setup, 1536, 3072, 8192},
        steps_{static_cast<int>(k_ / tile_k)},
        partials_{setup.scratch<float>(std::size_t{blocks_} * Ring::tile_m * Ring::tile_n, {.name = "partial tiles"})},
        flags_{setup.scratch<unsigned>(4 * std::size_t{blocks_}, {.name = "flags"})},
        a_map_{gemm::a_map(a_, m_, k_, Ring::tile_m)},
        a_square_{gemm::a_map(a_, m_, k_, square::Ring::tile_m)},
        b_map_{gemm::b_map(b_, k_, n_, Ring::tile_n)},
        b_half_{gemm::b_map(b_, k_, n_, Ring::tile_n / 2)},
        b_square_{gemm::b_map(b_, k_, n_, square::Ring::tile_n)},
        c_map_{c_map(c_, m_, n_)} {}

  // Once: the kernels leave all flags as they found them.
  void clear_flags(Launch& launch) { check(cudaMemsetAsync(flags_, 0, flags_.bytes(), launch.stream)); }

  void count_clusters(Launch& launch) {
    clear_flags(launch);
    clusters_ = resident_clusters(hybrid::hybrid_kernel, hybrid_grid(1));
    if (clusters_ == 0) throw Unsupported("no room for a cluster of two blocks with 224 KiB of shared memory each");
    clusters_ = std::min(clusters_, static_cast<int>(blocks_ / ranks));
  }

  void data_parallel(Launch& launch) { multiply(launch, true); }
  void stream_k(Launch& launch) { multiply(launch, false); }

  void stream_k_hybrid(Launch& launch) {
    using namespace hybrid;
    const TileOrder order{m_, n_, pair_m, Ring::tile_n, 2};  // bands: the divided pairs share panels
    const int streamed = order.count() % clusters_;
    const Plan plan{order, streamed, std::min(clusters_ / std::max(streamed, 1), steps_), steps_, static_cast<int>(n_)};
    launch(hybrid_kernel, hybrid_grid(clusters_), a_map_, b_half_, c_map_, c_.get(), plan, exchange());
  }

  void square_tiles(Launch& launch) {
    const TileOrder order{m_, n_, square::Ring::tile_m, square::Ring::tile_n, 1};
    const unsigned blocks = std::min(blocks_, static_cast<unsigned>(order.count()));
    launch(square::square_kernel, {blocks, square::threads, square::staged_ring_bytes}, a_square_, b_square_, c_map_, steps_,
           order.columns, order.count());
  }

 private:
  Exchange exchange() const { return {reinterpret_cast<float4*>(partials_.get()), flags_}; }

  // Clusters wait for one another, so that all of them must be there at the same time.
  static Grid hybrid_grid(int clusters) {
    using namespace hybrid;
    return {static_cast<unsigned>(clusters) * ranks, threads, shared_bytes<Ring, Epilogue>, ranks, true};
  }

  void multiply(Launch& launch, bool whole) {
    const int columns = static_cast<int>(n_ / Ring::tile_n), tiles = static_cast<int>(m_ / Ring::tile_m) * columns;
    const unsigned blocks = std::min(blocks_, static_cast<unsigned>(whole ? tiles : tiles * steps_));
    // Cooperative: a block waits for others' parts of its tiles, so all of them must run at once.
    const Grid grid{.blocks = blocks, .threads = threads, .shared_bytes = shared_bytes<Ring, Epilogue>, .cooperative = !whole};
    launch(stream_kernel, grid, a_map_, b_map_, c_map_, Shares{tiles, columns, steps_, whole}, exchange());
  }

  int steps_;
  unsigned blocks_ = multiprocessors();
  int clusters_ = 0;
  Scratch<float> partials_;
  Scratch<unsigned> flags_;
  CUtensorMap a_map_, a_square_, b_map_, b_half_, b_square_, c_map_;
};

}  // namespace

extern constinit const Pair stream_k_matmul{
    .teaches = "when the last wave is nearly empty, deal out steps along K instead of tiles, or find a tile that divides evenly",
    .lesson = "stream_k",
    .make = make<StreamKMatmul>,
    .baseline = {.name = "data_parallel", .run = call<&StreamKMatmul::data_parallel>},
    .optimized =
        variants({{.name = "stream_k", .run = call<&StreamKMatmul::stream_k>, .prepare = call<&StreamKMatmul::clear_flags>},
                  {.name = "stream_k_hybrid",
                   .run = call<&StreamKMatmul::stream_k_hybrid>,
                   .prepare = call<&StreamKMatmul::count_clusters>,
                   .needs = {.dsmem = true}},
                  {.name = "square_tiles", .run = call<&StreamKMatmul::square_tiles>, .gains_over = "data_parallel"}}),
    .libraries = cublas_library,
    .bound = Bound::compute,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
