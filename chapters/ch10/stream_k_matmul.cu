// SPDX-License-Identifier: Apache-2.0
// C = A B in bf16, 1536 x 3072 with K = 8192 (a down-projection of Llama-3.2-3B): 144 tiles of 128 x 256 for 132 SMs. Whole tiles
// take two waves, and the second leaves 120 SMs idle. Stream-K deals out steps along K instead of tiles: each SM gets 1/132 of
// all 18,432, which begins and ends somewhere in a tile. A block that begins in the middle of a tile leaves its sums in L2, does
// the rest of its share, and the one that had the tile's beginning adds them at its end, when they have long been there.
#include "block_pair.cuh"
#include "gemm_workload.hpp"
#include "wgmma_gemm.cuh"

#include <aisp/device/fence.cuh>
#include <aisp/device/warpgroup.cuh>

#include <algorithm>

namespace aisp::ch10 {
namespace {

using bf16 = __nv_bfloat16;
using Ring = wgmma_gemm::Ring<128, 256, 4>;
using wgmma_gemm::warpgroup_threads;
constexpr int consumers = 2, threads = (consumers + 1) * warpgroup_threads;
constexpr int count = Ring::tile_n / 2, quads = count / 4;  // of a thread's sums
constexpr int partial_quads = quads * warpgroup_threads;    // of one warpgroup's 64 x 256 sums, as its threads hold them

// Steps of one tile that a block does in one go.
struct Segment {
  int tile, first, steps;
  bool shared;  // with other blocks: these steps are not the whole tile
};

// The first `streamed` tiles are dealt out by steps, the others whole. Shares are numbered against the order in which blocks
// start, so that who waits for share i + 1 started after it: nothing depends on all blocks fitting at the same time.
struct Plan {
  int tiles, streamed, tiles_in_row, steps;

  __device__ int pairs() const { return static_cast<int>(gridDim.x / block_pair::blocks); }
  __device__ int pair() const { return static_cast<int>(blockIdx.x / block_pair::blocks); }
  __device__ int share() const { return pairs() - 1 - pair(); }
  // Tiles of both blocks are counted as one, 256 x 256.
  __device__ int top(int tile) const {
    return (tile / tiles_in_row * static_cast<int>(block_pair::blocks) + static_cast<int>(device::cluster_rank())) * Ring::tile_m;
  }
  __device__ int left(int tile) const { return tile % tiles_in_row * Ring::tile_n; }
  __device__ int begin(int share) const { return static_cast<int>(static_cast<long long>(share) * streamed * steps / pairs()); }
  // The first of the shares that a tile is dealt out to; `share` is one of them.
  __device__ int first_share(int tile, int share) const {
    while (begin(share) > tile * steps) --share;
    return share;
  }
  __device__ int end_share(int tile, int share) const {
    while (begin(share) < (tile + 1) * steps) ++share;
    return share;
  }

  template <class Visit>
  __device__ __forceinline__ void streamed_segments(Visit visit) const {
    const int end = begin(share() + 1);
    for (int at = begin(share()); at < end;) {
      const int tile = at / steps, first = at - tile * steps, todo = min(end - at, steps - first);
      visit(Segment{tile, first, todo, todo < steps});
      at += todo;
    }
  }
  template <class Visit>
  __device__ __forceinline__ void whole_tiles(Visit visit) const {
    for (int tile = streamed + pair(); tile < tiles; tile += pairs()) visit(Segment{tile, 0, steps, false});
  }
};

// Sums that wait in L2 for other blocks: slot 2 i + 1 is of share i where it begins a tile, 2 i where it goes on with one.
struct Exchange {
  float4* partials;   // [slots][blocks of a pair][consumers][quads][threads]
  unsigned* arrived;  // [shares][blocks of a pair][consumers], or [tiles][blocks of a pair]
  unsigned* left;     // [tiles][blocks of a pair]

  static __device__ std::size_t mine(int index) { return index * std::size_t{block_pair::blocks} + device::cluster_rank(); }
  __device__ float4* sums(int slot, int warpgroup) const {
    return partials + (mine(slot) * consumers + warpgroup) * partial_quads + threadIdx.x % warpgroup_threads;
  }
  __device__ unsigned* flag(int share, int warpgroup) const { return arrived + mine(share) * consumers + warpgroup; }
};

__device__ __forceinline__ bool is_leader() { return threadIdx.x % warpgroup_threads == 0; }
__device__ __forceinline__ void meet(int warpgroup) { device::named_barrier_sync(1 + warpgroup, warpgroup_threads); }

__device__ __forceinline__ void leave_sums(float4* to, const float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i)
    __stcg(to + i * warpgroup_threads, make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
}
__device__ __forceinline__ void add(float* sums, float4 v) { sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w; }
__device__ __forceinline__ void add_sums(const float4* from, float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < quads; ++i) add(sums + 4 * i, __ldcg(from + i * warpgroup_threads));
}
__device__ __forceinline__ void wait_for(const unsigned* flag, unsigned value, int warpgroup) {
  if (is_leader())
    while (device::load_acquire_gpu(flag) != value) {
    }
  meet(warpgroup);
}

__device__ __forceinline__ void store_tile(const Plan& plan, int tile, int warpgroup, const float (&sums)[count], bf16* c) {
  wgmma_gemm::store_sums(sums, c, plan.tiles_in_row * Ring::tile_n, plan.top(tile) + warpgroup * 64, plan.left(tile));
}

// A release waits until all of the block's stores have arrived in L2. A warp without other work does that, so that the consumer
// can go on with its next tile.
constexpr int announcing_threads = warpgroup_threads + 32;
__device__ __forceinline__ int announcing(int warpgroup) { return 1 + consumers + warpgroup; }
__device__ __forceinline__ void announce(const Plan& plan, int warpgroup, const Exchange& exchange) {
  if (plan.begin(plan.share()) % plan.steps == 0) return;
  device::named_barrier_sync(announcing(warpgroup), announcing_threads);
  if (device::lane_index() == 0) device::store_release_gpu(exchange.flag(plan.share(), warpgroup), 1);
}

// Of a tile in several segments the one that has its beginning adds the others, which came first in their blocks' shares.
__device__ __forceinline__ void finish_by_owner(const Plan& plan, const Segment& segment, int warpgroup, float (&sums)[count],
                                                const Exchange& exchange, bf16* c) {
  if (segment.first > 0) {
    leave_sums(exchange.sums(2 * plan.share(), warpgroup), sums);
    device::named_barrier_arrive(announcing(warpgroup), announcing_threads);
    return;
  }
  if (segment.shared)
    for (int other = plan.share() + 1, end = plan.end_share(segment.tile, other); other < end; ++other) {
      unsigned* const flag = exchange.flag(other, warpgroup);
      wait_for(flag, 1, warpgroup);
      add_sums(exchange.sums(2 * other, warpgroup), sums);
      if (is_leader()) *flag = 0;  // for the next run
    }
  store_tile(plan, segment.tile, warpgroup, sums, c);
}

// All blocks of a tile leave their sums; later each of them adds up and writes some columns of the tile.
__device__ __forceinline__ void leave_for_all(const Plan& plan, const Segment& segment, int warpgroup, const float (&sums)[count],
                                              const Exchange& exchange) {
  leave_sums(exchange.sums(2 * plan.share() + (segment.first == 0), warpgroup), sums);
  meet(warpgroup);
  if (is_leader()) device::add_release_gpu(exchange.arrived + Exchange::mine(segment.tile), 1);
}
__device__ __forceinline__ void finish_together(const Plan& plan, const Segment& segment, int warpgroup, const Exchange& exchange,
                                                bf16* c) {
  const int first = plan.first_share(segment.tile, plan.share()), end = plan.end_share(segment.tile, plan.share());
  const unsigned members = static_cast<unsigned>(end - first) * consumers;
  const std::size_t tile = Exchange::mine(segment.tile);
  wait_for(exchange.arrived + tile, members, warpgroup);
  for (int unit = (plan.share() - first) * consumers + warpgroup; unit < consumers * quads; unit += static_cast<int>(members)) {
    const int rows_of = unit / quads, quad = unit % quads;
    float sums[4] = {};
#pragma unroll 4
    for (int share = first; share < end; ++share)
      add(sums, __ldcg(exchange.sums(2 * share + (share == first), rows_of) + quad * warpgroup_threads));
    wgmma_gemm::store_sums(sums, c, plan.tiles_in_row * Ring::tile_n, plan.top(segment.tile) + rows_of * 64,
                           plan.left(segment.tile) + quad * 8);
  }
  if (!is_leader() || atomicAdd(exchange.left + tile, 1) != members - 1) return;
  exchange.arrived[tile] = 0;
  exchange.left[tile] = 0;
}

enum class Fixup { by_owner, together };

__device__ __forceinline__ void load_segment(Ring& ring, wgmma_gemm::Cursor<Ring>& at, const CUtensorMap* a, const CUtensorMap* b,
                                             const Plan& plan, const Segment& segment) {
  constexpr int half = Ring::tile_n / 2;
  const int rank = static_cast<int>(device::cluster_rank());
  for (int step = segment.first; step < segment.first + segment.steps; ++step) {
    const int k = step * wgmma_gemm::tile_k;
    block_pair::expect_stage(ring, at);
    device::tensor_load_2d(ring.a[at.stage], a, k, plan.top(segment.tile), &ring.full[at.stage]);
    device::tensor_load_3d_multicast(ring.b[at.stage] + rank * half * wgmma_gemm::tile_k, b, 0, k,
                                     (plan.left(segment.tile) + rank * half) / 64, &ring.full[at.stage], block_pair::both);
    at.next();
  }
}

// One block per SM, in pairs that share B. One thread loads, two warpgroups multiply 64 rows each.
template <Fixup fixup>
__global__ __launch_bounds__(threads, 1) void persistent_kernel(const __grid_constant__ CUtensorMap a,
                                                                const __grid_constant__ CUtensorMap b, bf16* c, Plan plan,
                                                                Exchange exchange) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  if (threadIdx.x == 0) ring.init(consumers * block_pair::blocks);
  device::cluster_sync();

  wgmma_gemm::Cursor<Ring> at;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), warpgroup = warp / 4;
  if (warpgroup == consumers) {
    device::give_up_registers<40>();
    if (is_leader()) {
      const auto load = [&](const Segment& segment) { load_segment(ring, at, &a, &b, plan, segment); };
      plan.streamed_segments(load);
      plan.whole_tiles(load);
    }
    if (fixup == Fixup::by_owner && warp % 4 >= 1 && warp % 4 <= consumers) announce(plan, warp % 4 - 1, exchange);
  } else {
    device::take_registers<232>();
    float sums[count];
    const auto multiply = [&](int steps) {
      block_pair::multiply(ring, at, steps, sums,
                           [&](int stage, int step) { wgmma_gemm::multiply_stage(ring, stage, warpgroup * 64, sums, step > 0); });
    };
    plan.streamed_segments([&](const Segment& segment) {
      multiply(segment.steps);
      if constexpr (fixup == Fixup::by_owner) finish_by_owner(plan, segment, warpgroup, sums, exchange, c);
      else leave_for_all(plan, segment, warpgroup, sums, exchange);
    });
    plan.whole_tiles([&](const Segment& segment) {
      multiply(segment.steps);
      store_tile(plan, segment.tile, warpgroup, sums, c);
    });
    if constexpr (fixup == Fixup::together)
      plan.streamed_segments([&](const Segment& segment) { finish_together(plan, segment, warpgroup, exchange, c); });
  }
  device::cluster_sync();  // nobody leaves while the other may still write to it
}

class StreamKMatmul final : public GemmWorkload {
 public:
  explicit StreamKMatmul(Setup& setup)
      : GemmWorkload{setup, 1536, 3072, 8192},
        tiles_{static_cast<int>(m_ / (block_pair::blocks * Ring::tile_m) * (n_ / Ring::tile_n))},
        steps_{static_cast<int>(k_ / wgmma_gemm::tile_k)},
        pairs_{std::min(block_pair::pairs_on_gpu(), static_cast<unsigned>(tiles_ * steps_))},
        partials_{setup.scratch<float>(2 * block_pair::blocks * std::size_t{pairs_} * Ring::tile_m * Ring::tile_n,
                                       {.name = "partial tiles"})},
        arrived_{setup.scratch<unsigned>(block_pair::blocks * std::max<std::size_t>(consumers * pairs_, tiles_),
                                         {.name = "arrivals"})},
        left_{setup.scratch<unsigned>(block_pair::blocks * static_cast<std::size_t>(tiles_), {.name = "departures"})},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, Ring::tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, Ring::tile_n / 2)} {
    check(cudaFuncSetAttribute(persistent_kernel<Fixup::by_owner>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
    check(cudaFuncSetAttribute(persistent_kernel<Fixup::together>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Ring)));
  }

  // Once: the kernels leave all flags as they found them.
  void clear_flags(Launch& launch) {
    check(cudaMemsetAsync(arrived_, 0, arrived_.bytes(), launch.stream));
    check(cudaMemsetAsync(left_, 0, left_.bytes(), launch.stream));
  }

  void data_parallel(Launch& launch) { multiply(launch, persistent_kernel<Fixup::by_owner>, 0, false); }
  void stream_k(Launch& launch) { multiply(launch, persistent_kernel<Fixup::by_owner>, tiles_, false); }
  // The blocks of a tile wait for one another at the end, so all of them have to be there.
  void stream_k_hybrid(Launch& launch) {
    multiply(launch, persistent_kernel<Fixup::together>, tiles_ % static_cast<int>(pairs_), true);
  }

 private:
  template <class Kernel>
  void multiply(Launch& launch, Kernel kernel, int streamed, bool cooperative) {
    const Plan plan{tiles_, streamed, static_cast<int>(n_ / Ring::tile_n), steps_};
    // The two schemes count in the same places, and leave zeros there.
    const Exchange exchange{reinterpret_cast<float4*>(partials_.get()), arrived_, left_};
    cudaLaunchAttribute attributes[] = {
        {.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {block_pair::blocks, 1, 1}}},
        {.id = cudaLaunchAttributeCooperative, .val = {.cooperative = 1}}};
    const cudaLaunchConfig_t config{.gridDim = pairs_ * block_pair::blocks,
                                    .blockDim = threads,
                                    .dynamicSmemBytes = sizeof(Ring),
                                    .stream = launch.stream,
                                    .attrs = attributes,
                                    .numAttrs = cooperative ? 2u : 1u};
    check(cudaLaunchKernelEx(&config, kernel, a_map_, b_map_, c_.get(), plan, exchange));
  }

  int tiles_, steps_;
  unsigned pairs_;
  Scratch<float> partials_;
  Scratch<unsigned> arrived_, left_;
  CUtensorMap a_map_, b_map_;
};

}  // namespace

extern constinit const Pair stream_k_matmul{
    .teaches = "when the last wave is nearly empty, dividing the steps along K instead of the tiles gives every SM equal work",
    .make = make<StreamKMatmul>,
    .baseline = {.name = "data_parallel", .run = call<&StreamKMatmul::data_parallel>},
    .optimized =
        variants({{.name = "stream_k", .run = call<&StreamKMatmul::stream_k>, .prepare = call<&StreamKMatmul::clear_flags>},
                  {.name = "stream_k_hybrid",
                   .run = call<&StreamKMatmul::stream_k_hybrid>,
                   .prepare = call<&StreamKMatmul::clear_flags>}}),
    .peers = cublas_peer,
    .bound = Bound::compute,
    // One rounding of the output to bf16 is 1.6e-3; the sums are fp32 everywhere.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
