// SPDX-License-Identifier: Apache-2.0
// Y = X W, 4096 x 4096, K = 7168, e4m3 with a scale for every 128 elements along K. The consumers do more than multiply: they
// take the sums of each step out of the tensor cores and scale them, and meanwhile the other warpgroup must multiply. When all
// meet in every step they end it together: 215 us, tensor cores 67 % busy. Without that barrier, but with a thread of the math
// that loads: 223 us or more, however far behind it refills. Two sets of sums in tiles of 128 x 128, so that a warpgroup overlaps
// itself: 214. A producer lets the warpgroups drift apart, but has a third of the registers. The 168 left are too few for 128 +
// 64 sums, and tiles of 128 x 128 load 1.33 times as much: 210 us. (A ninth warp alone is no cheaper: one quarter of the SM then
// has three, 168 for each: spills, 456 us.) setmaxnreg gives the consumers 232 and the large tile: 187 us, 81 % busy, 1.14x;
// cuBLASLt 190 us. In a plain bf16 product of 4096^3 all of these take 187 us: a single role queues two groups of products, and
// nothing idles.
#include "block_scaled_gemm.cuh"

#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

namespace aisp::ch10 {
namespace {

using namespace block_scaled_gemm;
using WideRing = Ring<256, 4>;
using NarrowRing = Ring<128, 6>;
constexpr unsigned one_role_threads = consumers * warpgroup_threads, specialized_threads = one_role_threads + warpgroup_threads;

__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / warpgroup_threads, 0);
}

// Thread 0 fills a stage when everybody has passed the barrier behind its products.
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
  if (threadIdx.x == 0) ring.init(consumers);
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
  const bool leader = threadIdx.x % warpgroup_threads == 0;
  float scaled[R::tile_n / 2];
  clear(scaled);
  for (int step = 0; step < problem.steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    const auto refill = [&] {
      if (threadIdx.x == 0 && step > 0 && loaded < problem.steps) load_next();
    };
    consumer.add_step(at.stage, step, scaled, refill, [&] {
      if (leader) device::barrier_arrive(&ring.empty[at.stage]);
    });
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
  if (threadIdx.x == 0) ring.init(consumers);
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
  const bool leader = threadIdx.x % warpgroup_threads == 0;
  float scaled[R::tile_n / 2];
  clear(scaled);
  for (int step = 0; step < problem.steps; ++step) {
    device::barrier_wait(&ring.full[at.stage], at.phase);
    consumer.add_step(
        at.stage, step, scaled, [] {},
        [&] {
          if (leader) device::barrier_arrive(&ring.empty[at.stage]);
        });
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
