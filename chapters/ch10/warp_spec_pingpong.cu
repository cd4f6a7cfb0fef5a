// SPDX-License-Identifier: Apache-2.0
// GELU(X W + b) in bf16, 16384 x 4096 with K = 1024: after 16 stages a tile of 128 x 256 is multiplied, then each sum takes a
// bias, a tanh and a store. In the cooperative schedule both consumer warpgroups end their tile together, and the tensor cores
// idle in every epilogue (225 us, tensor cores 66 % busy). In the ping-pong each has a tile of its own, 128 x 128, and multiplies
// while the other is in its epilogue (198 us, 84 %; cuBLASLt 210 us, 72 %): 1.28x fewer cycles, but 1.09x to 1.15x in time, since
// at its power limit the busier chip runs at 1.51 instead of 1.69 GHz. Blocks are persistent and rings as large in both.
#include "gemm_workload.hpp"
#include "persistent_gemm.cuh"
#include "warpgroup_turns.cuh"

#include <algorithm>
#include <cmath>

namespace aisp::ch10 {
namespace {

using persistent_gemm::producer_registers, persistent_gemm::consumer_registers;
using persistent_gemm::threads, persistent_gemm::tile_m;
using wgmma_gemm::bf16, wgmma_gemm::tile_k, wgmma_gemm::warpgroup_threads, wgmma_gemm::Cursor;
constexpr float root_2_over_pi = 0.7978845608f, cubic = 0.044715f;
using CooperativeRing = wgmma_gemm::Ring<tile_m, 256, 4>;
// Of 128 rows: tiles of 64 x 256 load more than L2 gives (295 us).
using PingpongRing = wgmma_gemm::Ring<tile_m, 128, 6>;

// The approximation by tanh, which is what cuBLASLt's epilogue computes, too.
__device__ __forceinline__ float gelu(float x) {
  const float half = 0.5f * x;
  return fmaf(half, __tanhf(x * fmaf(x * x, root_2_over_pi * cubic, root_2_over_pi)), half);
}

// A warpgroup's 64 rows of sums.
template <int count>
__device__ __forceinline__ void store_gelu(const float (&sums)[count], const bf16* bias, bf16* c, std::size_t n,
                                           std::size_t first_row, std::size_t first_column) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(bias + first_column) + threadIdx.x % 4;
  wgmma_gemm::store_sectors(sums, c, n, first_row, first_column, [pairs](int j, float2& above, float2& below) {
    const float2 b = __bfloat1622float2(pairs[j * 4]);
    above = {gelu(above.x + b.x), gelu(above.y + b.y)};
    below = {gelu(below.x + b.x), gelu(below.y + b.y)};
  });
}

// Tiles in row-major order; a block computes every gridDim.x-th.
struct Tiles {
  int count, columns;
  template <class R>
  __device__ int top(int tile) const {
    return tile / columns * R::tile_m;
  }
  template <class R>
  __device__ int left(int tile) const {
    return tile % columns * R::tile_n;
  }
};

template <class R>
__device__ __forceinline__ void produce(R& ring, const CUtensorMap* a, const CUtensorMap* b, int k, Tiles tiles) {
  Cursor<R> at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count; tile += static_cast<int>(gridDim.x))
    for (int depth = 0; depth < k; depth += tile_k)
      wgmma_gemm::load_stage(ring, at, a, b, tiles.top<R>(tile), tiles.left<R>(tile), depth);
}

// Both warpgroups on one tile, 64 rows each.
struct Cooperative {
  using R = CooperativeRing;
  static constexpr unsigned readers = 2;
  template <class Store>
  static __device__ __forceinline__ void consume(R& ring, int warpgroup, int steps, Tiles tiles, const Store& store) {
    Cursor<R> at;
    float sums[R::tile_n / 2];
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count; tile += static_cast<int>(gridDim.x)) {
      wgmma_gemm::multiply_tile(ring, at, warpgroup * 64, steps, sums);
      store(sums, tile, warpgroup * 64);
    }
  }
};

// Of a block's tiles warpgroup 0 computes the first, third, fifth ..., warpgroup 1 the others.
struct Pingpong {
  using R = PingpongRing;
  static constexpr unsigned readers = 1;
  template <class Store>
  static __device__ __forceinline__ void consume(R& ring, int warpgroup, int steps, Tiles tiles, const Store& store) {
    const bool leader = threadIdx.x % warpgroup_threads == 0;
    const auto free = [&ring, leader](int stage) {
      if (leader) device::barrier_arrive(&ring.empty[stage]);
    };
    const warpgroup_turns::Walk walk{static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), tiles.count};
    warpgroup_turns::take_turns(ring, warpgroup, steps, walk, free, [&store](const auto& sums, int tile) {
#pragma unroll
      for (int part = 0; part < R::tile_m / 64; ++part) store(sums[part], tile, part * 64);
    });
  }
};

// A producer warpgroup and two consumers, who divide the work as the schedule says.
template <class Schedule>
__global__ __launch_bounds__(threads, 1) void gelu_kernel(const __grid_constant__ CUtensorMap a,
                                                          const __grid_constant__ CUtensorMap b, const bf16* bias, bf16* c, int n,
                                                          int k, Tiles tiles) {
  using R = typename Schedule::R;
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (threadIdx.x == 0) ring.init(Schedule::readers);
  __syncthreads();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) produce(ring, &a, &b, k, tiles);
    return;
  }
  device::take_registers<consumer_registers>();
  Schedule::consume(ring, warpgroup, k / tile_k, tiles, [=](const auto& sums, int tile, int row) {
    store_gelu(sums, bias, c, n, tiles.top<R>(tile) + row, tiles.left<R>(tile));
  });
}

class WarpSpecPingpong final : public GemmWorkload {
 public:
  // Weights of a size that X W has a variance near one, where GELU bends.
  explicit WarpSpecPingpong(Setup& setup)
      : GemmWorkload{setup, 16384, 4096, 1024, uniform(-0.09375f, 0.09375f)},
        bias_{setup.input<bf16>(n_, uniform(-1, 1), {.name = "bias"})},
        a_map_{wgmma_gemm::a_map(a_, m_, k_, tile_m)},
        b_map_{wgmma_gemm::b_map(b_, k_, n_, CooperativeRing::tile_n)},
        narrow_b_map_{wgmma_gemm::b_map(b_, k_, n_, PingpongRing::tile_n)},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_, .epilogue = CUBLASLT_EPILOGUE_GELU_BIAS, .bias = bias_.get()}} {}

  double expected(std::size_t index) const override {
    const double x = GemmWorkload::expected(index) + bias_.host(index % n_);
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void cooperative(Launch& launch) { multiply<Cooperative>(launch, b_map_); }
  void pingpong(Launch& launch) { multiply<Pingpong>(launch, narrow_b_map_); }

  void cublaslt(Launch& launch) { cublaslt_.run(launch, a_, b_, c_); }
  void tune(Launch& launch) { cublaslt_.tune(launch, a_, b_, c_); }
  void tuned(Launch& launch) { cublaslt_.run_tuned(launch, a_, b_, c_); }

 private:
  template <class Schedule>
  void multiply(Launch& launch, const CUtensorMap& b_map) {
    using R = typename Schedule::R;
    const dim3 grid = tiles(R::tile_m, R::tile_n);
    const Tiles all{static_cast<int>(grid.x * grid.y), static_cast<int>(grid.x)};
    launch(gelu_kernel<Schedule>, {std::min(grid.x * grid.y, multiprocessors()), threads, sizeof(R)}, a_map_, b_map, bias_, c_,
           n_, k_, all);
  }

  Input<bf16> bias_;
  CUtensorMap a_map_, b_map_, narrow_b_map_;
  LibraryMatmul cublaslt_;
};

}  // namespace

extern constinit const Pair warp_spec_pingpong{
    .teaches = "tensor cores idle in every epilogue unless another warpgroup is in its main loop meanwhile",
    .lesson = "pingpong",
    .make = make<WarpSpecPingpong>,
    .baseline = {.name = "cooperative", .run = call<&WarpSpecPingpong::cooperative>},
    .optimized = variants({{.name = "pingpong", .run = call<&WarpSpecPingpong::pingpong>}}),
    .libraries =
        variants({{.name = "cublaslt", .run = call<&WarpSpecPingpong::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
                  {.name = "cublaslt_tuned",
                   .run = call<&WarpSpecPingpong::tuned>,
                   .prepare = call<&WarpSpecPingpong::tune>,
                   .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
