// SPDX-License-Identifier: Apache-2.0
// Dot products of pairs of embeddings, one warp a pair. The GPU starts blocks one after another, and four million blocks of one
// warp take as long to start as the whole kernel takes. The same warps in blocks of eight need an eighth of the starts, which
// hide behind the loads; eight lanes a pair with 16-byte loads then put four times the bytes in flight.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

namespace aisp::ch06 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int width = 64, lanes = 8;  // of an embedding; of a warp that share a pair, 16 bytes each
constexpr int pairs_granule = 32;     // of the largest block: 32 warps

__device__ float product(__nv_bfloat162 a, __nv_bfloat162 b, float sum) {
  return fmaf(__low2float(a), __low2float(b), fmaf(__high2float(a), __high2float(b), sum));
}

// Two values of each embedding a lane, whatever the size of the block.
__global__ void warp_per_pair_kernel(const __nv_bfloat162* a, const __nv_bfloat162* b, float* scores) {
  const std::size_t pair = std::size_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const std::size_t i = pair * (width / 2) + lane;
  const float sum = device::warp_sum(product(a[i], b[i], 0));
  if (lane == 0) scores[pair] = sum;
}

__global__ __launch_bounds__(256) void eight_lanes_kernel(const uint4* a, const uint4* b, float* scores) {
  const std::size_t i = std::size_t{blockIdx.x} * 256 + threadIdx.x;
  const uint4 from_a = a[i], from_b = b[i];
  const auto* u = reinterpret_cast<const __nv_bfloat162*>(&from_a);
  const auto* v = reinterpret_cast<const __nv_bfloat162*>(&from_b);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) sum = product(u[k], v[k], sum);
  sum = device::warp_sum<lanes>(sum);
  if (threadIdx.x % lanes == 0) scores[i / lanes] = sum;
}

// Does nothing: shows the cost of launching so many blocks.
__global__ void empty_kernel() {}

class LaunchConfiguration final : public Workload {
 public:
  explicit LaunchConfiguration(Setup& setup)
      : threads_{static_cast<unsigned>(setup.size("threads"))},
        pairs_{setup.scaled(4 << 20, pairs_granule)},
        a_{setup.input<bf16>(pairs_ * width, normal(0, 1), {.name = "a"})},
        b_{setup.input<bf16>(pairs_ * width, normal(0, 1), {.name = "b"})},
        scores_{setup.output<float>(pairs_, {.name = "scores"})},
        cublas_{setup} {
    if (pairs_granule % (threads_ / 32) != 0) throw Unsupported("threads must be 32 times a power of two");
  }

  Cost cost() const override {
    return {.flops = 2.0 * width * static_cast<double>(pairs_),
            .bytes = static_cast<double>(a_.bytes() + b_.bytes() + scores_.bytes())};
  }
  Cost variant_cost(std::string_view variant) const override {
    return variant.starts_with("empty_") ? Cost{.dependent_kernels = 1} : cost();
  }
  double expected(std::size_t pair) const override {
    double sum = 0;
    for (std::size_t i = pair * width; i < (pair + 1) * width; ++i) sum += a_.host(i) * b_.host(i);
    return sum;
  }

  void small_blocks(Launch& launch) { warp_per_pair(launch, threads_); }
  void two_warps(Launch& launch) { warp_per_pair(launch, 64); }
  void eight_warps(Launch& launch) { warp_per_pair(launch, 256); }
  void eight_lanes(Launch& launch) {
    launch(eight_lanes_kernel, {.blocks = blocks(lanes, 256), .threads = 256}, reinterpret_cast<const uint4*>(a_.get()),
           reinterpret_cast<const uint4*>(b_.get()), scores_);
  }
  void empty_one_warp(Launch& launch) { launch(empty_kernel, {.blocks = blocks(32, 32), .threads = 32}); }
  void empty_two_warps(Launch& launch) { launch(empty_kernel, {.blocks = blocks(32, 64), .threads = 64}); }
  void empty_eight_warps(Launch& launch) { launch(empty_kernel, {.blocks = blocks(32, 256), .threads = 256}); }
  // As many products of a row and a column; in cuBLAS's order the row is a transposed column.
  void cublas_batched(Launch& launch) {
    const float one = 1, zero = 0;
    const auto gemm = Cublas::function<StridedBatched>("cublasGemmStridedBatchedEx");
    cublas_->use(launch.stream);
    check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, width, &one, a_, CUDA_R_16BF, width, width, b_, CUDA_R_16BF,
               width, width, &zero, scores_, CUDA_R_32F, 1, 1, static_cast<int>(pairs_), CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT));
  }

 private:
  // Spelled out because the header overloads the name.
  using StridedBatched = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                        const void*, cudaDataType_t, int, long long, const void*, cudaDataType_t, int, long long,
                                        const void*, void*, cudaDataType_t, int, long long, int, cublasComputeType_t,
                                        cublasGemmAlgo_t);

  unsigned blocks(std::size_t threads_per_pair, std::size_t threads) const {
    return static_cast<unsigned>(pairs_ * threads_per_pair / threads);
  }
  void warp_per_pair(Launch& launch, unsigned threads) {
    launch(warp_per_pair_kernel, {.blocks = blocks(32, threads), .threads = threads},
           reinterpret_cast<const __nv_bfloat162*>(a_.get()), reinterpret_cast<const __nv_bfloat162*>(b_.get()), scores_);
  }

  unsigned threads_;  // of a block of the baseline
  std::size_t pairs_;
  Input<bf16> a_, b_;
  Output<float> scores_;
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair launch_configuration{
    .teaches =
        "the GPU starts blocks one after another: four million blocks of one warp take as long as their start, whatever they "
        "compute",
    .lesson = "eight_warps",
    .make = make<LaunchConfiguration>,
    .baseline = {.name = "one_warp_blocks", .run = call<&LaunchConfiguration::small_blocks>},
    .optimized = variants({{.name = "two_warps", .run = call<&LaunchConfiguration::two_warps>},
                           {.name = "eight_warps", .run = call<&LaunchConfiguration::eight_warps>},
                           {.name = "eight_lanes", .run = call<&LaunchConfiguration::eight_lanes>}}),
    .controls =
        variants({{.name = "empty_one_warp", .run = call<&LaunchConfiguration::empty_one_warp>, .outputs = no_outputs},
                  {.name = "empty_two_warps", .run = call<&LaunchConfiguration::empty_two_warps>, .outputs = no_outputs},
                  {.name = "empty_eight_warps", .run = call<&LaunchConfiguration::empty_eight_warps>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cublas_batched",
                            .run = call<&LaunchConfiguration::cublas_batched>,
                            .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(width),
    // Threads of a block of the baseline, whose name says what they are unless they are set.
    .sizes = sizes({{.name = "threads", .full = 32, .multiple = 32, .most = 1024, .scales = false}}),
    .sweep = cases({{"threads_32", "threads=32"},
                    {"threads_64", "threads=64"},
                    {"threads_128", "threads=128"},
                    {"threads_256", "threads=256"},
                    {"threads_512", "threads=512"},
                    {"threads_1024", "threads=1024"}}),
    .edges = cases({{"threads_96", "threads=96"}, {"threads_1024", "threads=1024"}}),
    .reference_samples = 65536,
};

}  // namespace aisp::ch06
