// SPDX-License-Identifier: Apache-2.0
// Y = X W, 4096 x 4096, K = 7168, e4m3 with a scale for every 128 elements along K, as DeepSeek-V3 is trained and served (arXiv
// 2412.19437, section 3.3). The tensor cores cannot apply the scales: after every 128 of K the consumers take the sums out and
// add them, scaled, to others in fp32, and meanwhile the other warpgroup must multiply. A common barrier in every step keeps both
// in step; so does a thread of the math that loads for both. A producer lets them drift apart, but has a third of the registers:
// tiles must be narrower. setmaxnreg gives the registers to the consumers, and these the large tile.
#include <aisp/device/wgmma_products.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cuda_fp8.h>

#include "gemm_epilogue.cuh"

namespace aisp::ch10 {
namespace {

using gemm::bf16, gemm::warpgroup_threads, gemm::Cursor;
using e4m3 = __nv_fp8_e4m3;
// x[m][k] has one scale for each row (x_scales[k / 128][m]), w[n][k] one for each 128 x 128 block (w_scales[n / 128][k / 128]).
constexpr int block = 128;  // elements with a scale of their own, and bytes of a row of the swizzle
constexpr int tile_m = 128, consumers = 2;

struct Operands {
  using Element = e4m3;
  static constexpr int tile_k = block;
};

// A stage also holds the scales of its rows of x.
template <int tile_n, int stages>
struct Ring : gemm::Ring<tile_m, tile_n, stages, Operands> {
  static constexpr int parts = tile_n / block;
  static constexpr unsigned stage_bytes = gemm::Ring<tile_m, tile_n, stages, Operands>::stage_bytes + tile_m * sizeof(float);
  alignas(16) float x_scales[stages][tile_m];
};

// The arguments of every kernel: one tile a block.
struct Problem {
  const float *x_scales, *w_scales;
  bf16* y;
  int m, n, steps;

  template <class R>
  __device__ int left() const {
    return static_cast<int>(blockIdx.x) * R::tile_n;
  }
  __device__ int top() const { return static_cast<int>(blockIdx.y) * tile_m; }
};

// Asks for a step's 128 of K; its stage is free. By one thread.
template <class R>
__device__ __forceinline__ void load(R& ring, int stage, int step, const CUtensorMap* x, const CUtensorMap* w,
                                     const Problem& problem) {
  std::uint64_t* const full = &ring.full[stage];
  device::barrier_arrive_expect(full, R::stage_bytes);
  device::tensor_load_2d(ring.a[stage], x, step * block, problem.top(), full);
  device::tensor_load_2d(ring.b[stage], w, step * block, problem.left<R>(), full);
  device::bulk_load(ring.x_scales[stage], problem.x_scales + static_cast<std::size_t>(step) * problem.m + problem.top(),
                    tile_m * sizeof(float), full);
}

// One consumer warpgroup's 64 rows of a tile.
template <class R>
struct Consumer {
  R& ring;
  const Problem& problem;
  int warpgroup;

  // Queues the products of 128 columns with the 128 of K that a stage holds.
  __device__ __forceinline__ void multiply(int stage, int part, float (&sums)[block / 2]) const {
    const std::uint64_t x = device::operand(ring.a[stage] + warpgroup * 64 * block);
    const std::uint64_t w = device::operand(ring.b[stage] + part * block * block);
    device::wgmma_touch(sums);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < block; i += 32)
      device::wgmma<device::Operands::e4m3>(sums, device::advance(x, i), device::advance(w, i), i > 0);
    device::wgmma_commit();
  }

  // The scales of this thread's two rows.
  __device__ __forceinline__ float2 row_scales(int stage) const {
    const int t = threadIdx.x % warpgroup_threads, row = warpgroup * 64 + t / 32 * 16 + t % 32 / 4;
    return {ring.x_scales[stage][row], ring.x_scales[stage][row + 8]};
  }
  __device__ __forceinline__ float block_scale(int step, int part) const {
    return __ldg(problem.w_scales + (problem.left<R>() / block + part) * problem.steps + step);
  }

  static __device__ __forceinline__ void promote(const float (&sums)[block / 2], float2 rows, float columns, float* scaled) {
    const float upper = rows.x * columns, lower = rows.y * columns;
#pragma unroll
    for (int i = 0; i < block / 2; i += 4) {
      scaled[i] = fmaf(sums[i], upper, scaled[i]);
      scaled[i + 1] = fmaf(sums[i + 1], upper, scaled[i + 1]);
      scaled[i + 2] = fmaf(sums[i + 2], lower, scaled[i + 2]);
      scaled[i + 3] = fmaf(sums[i + 3], lower, scaled[i + 3]);
    }
  }

  // A whole step. The columns are taken in parts of 128, so that 64 registers hold what the tensor cores sum up. `meanwhile` is
  // called when the first products are under way, `done` when the stage has been read.
  template <class Meanwhile, class Done>
  __device__ __forceinline__ void add_step(int stage, int step, float (&scaled)[R::tile_n / 2], const Meanwhile& meanwhile,
                                           const Done& done) const {
    const float2 rows = row_scales(stage);
#pragma unroll
    for (int part = 0; part < R::parts; ++part) {
      float sums[block / 2];
      multiply(stage, part, sums);
      if (part == 0) meanwhile();
      const float columns = block_scale(step, part);
      device::wgmma_wait<0>();
      device::wgmma_touch(sums);
      if (part == R::parts - 1) done();
      promote(sums, rows, columns, scaled + part * (block / 2));
    }
  }

  __device__ __forceinline__ void store(const float (&scaled)[R::tile_n / 2]) const {
    gemm::store_sectors(scaled, problem.y, problem.n, problem.top() + warpgroup * 64, problem.left<R>());
  }
};

// Once a warp, when its products are done and all its threads have read their scales: a wait for products covers the tensor
// cores' reads of the warpgroup, but no other warp's ordinary ones.
constexpr unsigned readers = consumers * warpgroup_threads / 32;
template <class R>
__device__ __forceinline__ void give_back(R& ring, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) device::barrier_arrive(&ring.empty[stage]);
}

template <int count>
__device__ __forceinline__ void clear(float (&sums)[count]) {
#pragma unroll
  for (float& sum : sums) sum = 0;
}

using WideRing = Ring<256, 4>;
using NarrowRing = Ring<128, 6>;
constexpr unsigned one_role_threads = consumers * warpgroup_threads, specialized_threads = one_role_threads + warpgroup_threads;

__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
}

// Thread 0 fills a stage when everybody has passed the barrier after its products.
template <class R>
__global__ __launch_bounds__(one_role_threads, 1) void barrier_kernel(const __grid_constant__ CUtensorMap x,
                                                                      const __grid_constant__ CUtensorMap w, Problem problem) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) {
    ring.init(1);
    for (int step = 0; step < R::stages - 1 && step < problem.steps; ++step) load(ring, step, step, &x, &w, problem);
  }
  const Consumer<R> consumer{ring, problem, warpgroup_index()};
  float scaled[R::tile_n / 2];
  clear(scaled);
  Cursor<R> at;
  for (int step = 0; step < problem.steps; ++step) {
    __syncthreads();  // both warpgroups are done with the stage before
    device::barrier_wait(&ring.full[at.stage], at.phase);
    const auto load_next = [&] {
      const int next = step + R::stages - 1;
      if (threadIdx.x == 0 && next < problem.steps) load(ring, next % R::stages, next, &x, &w, problem);
    };
    consumer.add_step(at.stage, step, scaled, load_next, [] {});
    at.next();
  }
  consumer.store(scaled);
}

// No common barrier: while its products run thread 0 waits until both warpgroups have left the stage of the step before.
template <class R>
__global__ __launch_bounds__(one_role_threads, 1) void self_loading_kernel(const __grid_constant__ CUtensorMap x,
                                                                           const __grid_constant__ CUtensorMap w,
                                                                           Problem problem) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  if (threadIdx.x == 0) ring.init(readers);
  __syncthreads();
  Cursor<R> filling, at;
  int loaded = 0;
  const auto load_next = [&] {
    device::barrier_wait(&ring.empty[filling.stage], filling.phase ^ 1);
    load(ring, filling.stage, loaded, &x, &w, problem);
    filling.next();
    ++loaded;
  };
  if (threadIdx.x == 0)
    while (loaded < R::stages && loaded < problem.steps) load_next();

  const Consumer<R> consumer{ring, problem, warpgroup_index()};
  float scaled[R::tile_n / 2];
  clear(scaled);
  for (int step = 0; step < problem.steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    const auto refill = [&] {
      if (threadIdx.x == 0 && step > 0 && loaded < problem.steps) load_next();
    };
    consumer.add_step(at.stage, step, scaled, refill, [&] { give_back(ring, at.stage); });
    at.next();
  }
  consumer.store(scaled);
}

// The third warpgroup loads and does nothing else.
template <class R, bool reallocate>
__global__ __launch_bounds__(specialized_threads, 1) void producer_kernel(const __grid_constant__ CUtensorMap x,
                                                                          const __grid_constant__ CUtensorMap w,
                                                                          Problem problem) {
  extern __shared__ __align__(1024) unsigned char memory[];
  R& ring = *reinterpret_cast<R*>(memory);
  const int warpgroup = warpgroup_index();
  if (threadIdx.x == 0) ring.init(readers);
  __syncthreads();
  Cursor<R> at;
  if (warpgroup == consumers) {
    if constexpr (reallocate) device::give_up_registers<40>();
    if (threadIdx.x % warpgroup_threads != 0) return;
    for (int step = 0; step < problem.steps; ++step) {
      device::barrier_wait(&ring.empty[at.stage], at.phase ^ 1);
      load(ring, at.stage, step, &x, &w, problem);
      at.next();
    }
    return;
  }
  if constexpr (reallocate) device::take_registers<232>();
  const Consumer<R> consumer{ring, problem, warpgroup};
  float scaled[R::tile_n / 2];
  clear(scaled);
  for (int step = 0; step < problem.steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    consumer.add_step(
        at.stage, step, scaled, [] {}, [&] { give_back(ring, at.stage); });
    at.next();
  }
  consumer.store(scaled);
}

class WarpSpecializedPipeline final : public Workload {
 public:
  explicit WarpSpecializedPipeline(Setup& setup)
      : m_{setup.scaled(4096, 256)},
        n_{setup.scaled(4096, 256)},
        k_{setup.scaled(7168, 512)},
        // Up to the type's largest value, 448, as scales made from each block's largest element leave it.
        x_{setup.input<e4m3>(m_ * k_, normal(0, 90), {.name = "x"})},
        w_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "w"})},
        x_scales_{setup.input<float>(k_ / block * m_, uniform(0.005f, 0.02f), {.name = "scales of x"})},
        w_scales_{setup.input<float>(n_ / block * (k_ / block), uniform(0.0003f, 0.001f), {.name = "scales of w"})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y"})},
        x_map_{map(x_, m_, tile_m)},
        w_map_{map(w_, n_, WideRing::tile_n)},
        narrow_w_map_{map(w_, n_, NarrowRing::tile_n)},
        cublaslt_{setup,
                  {.m = m_,
                   .n = n_,
                   .k = k_,
                   .operands = CUDA_R_8F_E4M3,
                   .b_is_transposed = true,
                   .a_scales = x_scales_,
                   .b_scales = w_scales_}} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + x_scales_.bytes() + w_scales_.bytes() + y_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; k += block) {
      double products = 0;
      for (std::size_t i = k; i < k + block; ++i) products += x_.host(row * k_ + i) * w_.host(column * k_ + i);
      sum += products * x_scales_.host(k / block * m_ + row) * w_scales_.host(column / block * (k_ / block) + k / block);
    }
    return sum;
  }

  void block_barrier(Launch& launch) { multiply<WideRing>(launch, barrier_kernel<WideRing>, one_role_threads); }
  void one_thread_loads(Launch& launch) { multiply<WideRing>(launch, self_loading_kernel<WideRing>, one_role_threads); }
  void producer_warp(Launch& launch) { multiply<NarrowRing>(launch, producer_kernel<NarrowRing, false>, specialized_threads); }
  void producer_setmaxnreg(Launch& launch) { multiply<WideRing>(launch, producer_kernel<WideRing, true>, specialized_threads); }

  void cublaslt(Launch& launch) { cublaslt_.run(launch, x_, w_, y_); }
  void tune(Launch& launch) { cublaslt_.tune(launch, x_, w_, y_); }
  void tuned(Launch& launch) { cublaslt_.run_tuned(launch, x_, w_, y_); }

 private:
  CUtensorMap map(const Input<e4m3>& data, std::size_t rows, unsigned tile_rows) const {
    return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data.get(), rows, k_, tile_rows, block);
  }
  using Kernel = void(CUtensorMap, CUtensorMap, Problem);
  template <class R>
  void multiply(Launch& launch, Kernel* kernel, unsigned threads) {
    const dim3 grid{static_cast<unsigned>(n_ / R::tile_n), static_cast<unsigned>(m_ / tile_m)};
    launch(kernel, {grid, threads, sizeof(R)}, x_map_, R::tile_n == WideRing::tile_n ? w_map_ : narrow_w_map_,
           Problem{x_scales_, w_scales_, y_, static_cast<int>(m_), static_cast<int>(n_), static_cast<int>(k_ / block)});
  }

  std::size_t m_, n_, k_;
  Input<e4m3> x_, w_;  // x[m][k], w[n][k]
  Input<float> x_scales_, w_scales_;
  Output<bf16> y_;
  CUtensorMap x_map_, w_map_, narrow_w_map_;
  LibraryMatmul cublaslt_;
};

}  // namespace

extern constinit const Pair warp_specialized_pipeline{
    .teaches =
        "tensor cores idle while all warps scale their sums between the same barriers; without one, warps that only multiply "
        "drift apart",
    .lesson = "producer_setmaxnreg",
    .make = make<WarpSpecializedPipeline>,
    .baseline = {.name = "block_barrier", .run = call<&WarpSpecializedPipeline::block_barrier>},
    .optimized = variants({{.name = "one_thread_loads", .run = call<&WarpSpecializedPipeline::one_thread_loads>},
                           {.name = "producer_warp", .run = call<&WarpSpecializedPipeline::producer_warp>},
                           {.name = "producer_setmaxnreg", .run = call<&WarpSpecializedPipeline::producer_setmaxnreg>}}),
    .libraries = variants(
        {{.name = "cublaslt", .run = call<&WarpSpecializedPipeline::cublaslt>, .needs = {.libraries = {Library::cublaslt}}},
         {.name = "cublaslt_tuned",
          .run = call<&WarpSpecializedPipeline::tuned>,
          .prepare = call<&WarpSpecializedPipeline::tune>,
          .needs = {.libraries = {Library::cublaslt}}}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,  // errors of sums of 128 products average out over 56 steps
    .needs = {.min_sm = 90, .max_sm = 90},
};

}  // namespace aisp::ch10
