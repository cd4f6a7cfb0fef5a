// SPDX-License-Identifier: Apache-2.0
// GELU(X W + b) in bf16, 16384 x 4096 with K = 1024: after 16 stages a tile of 128 x 256 is multiplied, then each sum takes a
// bias, a tanh and a store. In the cooperative schedule both consumer warpgroups end their tile together, and the tensor cores
// idle in every epilogue. In the ping-pong each has a tile of its own, 128 x 128, and multiplies while the other is in its
// epilogue. Two such tiles load a third more than the wide one, so that not every GPU gains. Blocks are persistent and rings as
// large in both.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>

#include "gemm_epilogue.cuh"
#include "gemm_workload.hpp"

#include <algorithm>
#include <cmath>

namespace aisp::ch10 {
namespace {

using gemm::bf16, gemm::tile_k, gemm::warpgroup_threads, gemm::Cursor;
using gemm::producer_registers, gemm::consumer_registers;
using gemm::threads, gemm::tile_m;
constexpr float root_2_over_pi = 0.7978845608f, cubic = 0.044715f;
using CooperativeRing = gemm::Ring<tile_m, 256, 4>;
// Tiles have 128 rows: those of 64 x 256 load more than L2 gives.
using PingpongRing = gemm::Ring<tile_m, 128, 6>;

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
  gemm::store_sectors(sums, c, n, first_row, first_column, [pairs](int j, float2& above, float2& below) {
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
    for (int first_k = 0; first_k < k; first_k += tile_k)
      gemm::load_stage(ring, at, a, b, tiles.top<R>(tile), tiles.left<R>(tile), first_k);
}

// A producer warpgroup and two consumers, both on one tile, 64 rows each: they end it together.
__global__ __launch_bounds__(threads, 1) void cooperative_kernel(const __grid_constant__ CUtensorMap a,
                                                                 const __grid_constant__ CUtensorMap b, const bf16* bias, bf16* c,
                                                                 int n, int k, Tiles tiles) {
  using R = CooperativeRing;
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (threadIdx.x == 0) ring.init(2);
  __syncthreads();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) produce(ring, &a, &b, k, tiles);
    return;
  }
  device::take_registers<consumer_registers>();
  Cursor<R> at;
  float sums[R::tile_n / 2];
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count; tile += static_cast<int>(gridDim.x)) {
    gemm::multiply_tile(ring, at, warpgroup * 64, k / tile_k, sums);
    store_gelu(sums, bias, c, n, tiles.top<R>(tile) + warpgroup * 64, tiles.left<R>(tile));
  }
}

// Barrier 1 + w is met by warpgroup w, which waits, and the other one, which lets it go on.
__device__ __forceinline__ void wait_for_turn(int warpgroup) { device::named_barrier_sync(1 + warpgroup, 2 * warpgroup_threads); }
__device__ __forceinline__ void give_turn_to(int warpgroup) {
  device::named_barrier_arrive(1 + warpgroup, 2 * warpgroup_threads);
}

// Past the stages of a tile that the other warpgroup reads.
template <class R>
__device__ __forceinline__ void skip(Cursor<R>& at, int steps) {
  const int end = at.stage + steps;
  at.phase ^= end / R::stages & 1;
  at.stage = end % R::stages;
}

// Warpgroup 0 computes the first, third, fifth ... of a block's tiles, warpgroup 1 the others, each in two parts of 64 rows. The
// ring's stages come in the order of the tiles. When a tile's last products are queued the other warpgroup may queue its first:
// every tile but the block's first waits for a turn, and every tile but its last gives one.
__global__ __launch_bounds__(threads, 1) void pingpong_kernel(const __grid_constant__ CUtensorMap a,
                                                              const __grid_constant__ CUtensorMap b, const bf16* bias, bf16* c,
                                                              int n, int k, Tiles tiles) {
  using R = PingpongRing;
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
  if (threadIdx.x == 0) ring.init(1);
  __syncthreads();
  if (warpgroup == 2) {
    device::give_up_registers<producer_registers>();
    if (threadIdx.x % warpgroup_threads == 0) produce(ring, &a, &b, k, tiles);
    return;
  }
  device::take_registers<consumer_registers>();
  const bool leader = threadIdx.x % warpgroup_threads == 0;
  const auto free = [&ring, leader](int stage) {
    if (leader) device::barrier_arrive(&ring.empty[stage]);
  };
  const int first = static_cast<int>(blockIdx.x), stride = static_cast<int>(gridDim.x), steps = k / tile_k;
  Cursor<R> at;
  if (warpgroup == 1) skip(at, steps);
  float sums[R::tile_m / 64][R::tile_n / 2];
  for (int tile = first + warpgroup * stride; tile < tiles.count; tile += 2 * stride) {
    if (tile >= stride) wait_for_turn(warpgroup);
    int previous = -1;
    for (int step = 0; step < steps; ++step) {
      device::barrier_wait(&ring.full[at.stage], at.phase);
#pragma unroll
      for (auto& part : sums) device::wgmma_touch(part);
      device::wgmma_fence();
#pragma unroll
      for (int part = 0; part < R::tile_m / 64; ++part) gemm::multiply_stage(ring, at.stage, part * 64, sums[part], step > 0);
      device::wgmma_commit();
      device::wgmma_wait<1>();
      if (previous >= 0) free(previous);
      previous = at.stage;
      at.next();
    }
    if (tile + stride < tiles.count) give_turn_to(1 - warpgroup);
    device::wgmma_wait<0>();
#pragma unroll
    for (auto& part : sums) device::wgmma_touch(part);
    free(previous);
    skip(at, steps);
#pragma unroll
    for (int part = 0; part < R::tile_m / 64; ++part)
      store_gelu(sums[part], bias, c, n, tiles.top<R>(tile) + part * 64, tiles.left<R>(tile));
  }
}

class WarpSpecPingpong final : public GemmWorkload {
 public:
  // Weights of a size that X W has a variance near one, where GELU bends.
  explicit WarpSpecPingpong(Setup& setup)
      : GemmWorkload{setup, 16384, 4096, 1024, uniform(-0.09375f, 0.09375f)},
        bias_{setup.input<bf16>(n_, uniform(-1, 1), {.name = "bias"})},
        a_map_{gemm::a_map(a_, m_, k_, tile_m)},
        b_map_{gemm::b_map(b_, k_, n_, CooperativeRing::tile_n)},
        narrow_b_map_{gemm::b_map(b_, k_, n_, PingpongRing::tile_n)},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_, .epilogue = CUBLASLT_EPILOGUE_GELU_BIAS, .bias = bias_.get()}} {}

  double expected(std::size_t index) const override {
    const double x = GemmWorkload::expected(index) + bias_.host(index % n_);
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void cooperative(Launch& launch) { multiply<CooperativeRing>(launch, cooperative_kernel, b_map_); }
  void pingpong(Launch& launch) { multiply<PingpongRing>(launch, pingpong_kernel, narrow_b_map_); }

  void cublaslt(Launch& launch) { cublaslt_.run(launch, a_, b_, c_); }
  void tune(Launch& launch) { cublaslt_.tune(launch, a_, b_, c_); }
  void tuned(Launch& launch) { cublaslt_.run_tuned(launch, a_, b_, c_); }

 private:
  template <class R, class Kernel>
  void multiply(Launch& launch, Kernel* kernel, const CUtensorMap& b_map) {
    const dim3 grid = tiles(R::tile_m, R::tile_n);
    const Tiles all{static_cast<int>(grid.x * grid.y), static_cast<int>(grid.x)};
    launch(kernel, {std::min(grid.x * grid.y, multiprocessors()), threads, sizeof(R)}, a_map_, b_map, bias_, c_, n_, k_, all);
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
