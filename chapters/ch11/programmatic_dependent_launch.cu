// SPDX-License-Identifier: Apache-2.0
// Decoding is a chain of products of a matrix with a vector: each reads its weights once and needs all of the vector that the one
// before has made. Between two kernels memory idles: for the launch, until the first weights arrive, and while the last blocks
// end. But the weights do not depend on the chain. A kernel that starts while the one before still runs (programmatic dependent
// launch) can request them at once and wait only before it reads the vector. All variants are replayed as a graph.
#include <cuda_bf16.h>
#include <aisp/device/async_copy.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

namespace aisp::ch11 {
namespace {

using bf16 = __nv_bfloat16;
constexpr unsigned layers = 64;
constexpr unsigned threads = 256, warps = threads / 32;
// A lane reads a row's weights in packets of four: 8 bytes, for which the vector's 16 are neighbours in shared memory too.
constexpr unsigned step = 32 * 4;    // weights of a warp's read
constexpr unsigned held = 16;        // packets that a lane has in registers: a row of 2048
constexpr unsigned most_ahead = 32;  // packets of a lane that are copied to shared memory before the wait
__host__ __device__ constexpr unsigned ahead_of(unsigned n) {
  return n / step <= held ? 0 : n / step - held < most_ahead ? n / step - held : most_ahead;
}

enum class Order : std::uint8_t {
  plain,         // an ordinary kernel
  wait_first,    // starts early and waits at once
  weights_first  // requests weights before it waits
};

__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000); }
__device__ float multiply_add(uint2 w, float4 x, float sum) {
  return fmaf(high(w.y), x.w, fmaf(low(w.y), x.z, fmaf(high(w.x), x.y, fmaf(low(w.x), x.x, sum))));
}

// y = x + weights x, a row a warp.
template <Order order, bool prefetches>
__global__ __launch_bounds__(threads) void layer_kernel(const bf16* weights, const float* x, float* y, unsigned n) {
  extern __shared__ float4 shared[];  // x, then the rows' next weights
  if constexpr (order != Order::plain) device::let_dependents_start();
  if constexpr (order == Order::wait_first) device::wait_for_previous_kernel();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * warps + warp;
  const unsigned packets = n / step, ahead = prefetches ? ahead_of(n) : 0;
  const auto* const of_lane = reinterpret_cast<const uint2*>(weights + std::size_t{row} * n) + lane;
  uint2 w[held];
#pragma unroll
  for (unsigned i = 0; i < held; ++i)
    if (i < packets) w[i] = __ldcs(of_lane + i * 32);
  uint2* const next = reinterpret_cast<uint2*>(shared + n / 4) + warp * (ahead * 32) + lane;
  if constexpr (prefetches) {
    for (unsigned i = 0; i < ahead; ++i) device::copy_async<8>(next + i * 32, of_lane + (held + i) * 32);
    device::commit_copies();
  }
  if constexpr (order == Order::weights_first) device::wait_for_previous_kernel();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < n / 4; i += 2 * threads) {  // two in flight: all of a vector of 2048
    const bool both = i + threads < n / 4;
    const float4* const from = reinterpret_cast<const float4*>(x) + i;
    const float4 first = __ldcg(from), second = __ldcg(both ? from + threads : from);
    shared[i] = first;
    if (both) shared[i + threads] = second;
  }
  __syncthreads();
  float sums[4] = {};
#pragma unroll
  for (unsigned i = 0; i < held; ++i)
    if (i < packets) sums[i % 4] = multiply_add(w[i], shared[i * 32 + lane], sums[i % 4]);
  if constexpr (prefetches) device::wait_copies<0>();
  for (unsigned first = held; first < packets; first += held) {
#pragma unroll
    for (unsigned i = 0; i < held; ++i)
      if (first + i < packets)
        w[i] = first + i < held + ahead ? next[(first + i - held) * 32] : __ldcs(of_lane + (first + i) * 32);
#pragma unroll
    for (unsigned i = 0; i < held; ++i)
      if (first + i < packets) sums[i % 4] = multiply_add(w[i], shared[(first + i) * 32 + lane], sums[i % 4]);
  }
  const float total = device::warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (lane == 0) y[row] = reinterpret_cast<const float*>(shared)[row] + total;
}

// The same in float64: a block a row.
__global__ __launch_bounds__(threads) void reference_kernel(const bf16* weights, const double* x, double* y, unsigned n) {
  __shared__ double of_warps[device::largest_block_in_warps];
  double sum = 0;
  for (unsigned i = threadIdx.x; i < n; i += threads)
    sum += static_cast<double>(__bfloat162float(weights[std::size_t{blockIdx.x} * n + i])) * x[i];
  const double total = device::block_sum(sum, of_warps);
  if (threadIdx.x == 0) y[blockIdx.x] = x[blockIdx.x] + total;
}

class ProgrammaticDependentLaunch final : public Workload {
 public:
  explicit ProgrammaticDependentLaunch(Setup& setup)
      : n_{setup.size("n")},
        weights_{setup.input<bf16>(layers * n_ * n_, normal(0, 0.1f / std::sqrt(static_cast<float>(n_))),
                                   {.name = "weights", .constant = true})},
        in_{setup.input<float>(n_, uniform(-1, 1), {.name = "activations"})},
        out_{setup.output<float>(n_, {.name = "result"})},
        between_{setup.scratch<float>(2 * n_)},
        rounded_{setup.scratch<bf16>(2 * n_)},
        exact_{setup.scratch<double>(2 * n_)},
        cublas_{setup} {}

  Cost cost() const override { return {.flops = 2.0 * weights_.size(), .bytes = static_cast<double>(weights_.bytes())}; }

  void compute_reference(Launch& launch) override {
    reference_.resize(n_);
    for (std::size_t i = 0; i < n_; ++i) reference_[i] = in_.host(i);
    check(cudaMemcpyAsync(exact_, reference_.data(), n_ * sizeof(double), cudaMemcpyHostToDevice, launch.stream));
    for (unsigned layer = 0; layer < layers; ++layer)
      launch(reference_kernel, {static_cast<unsigned>(n_), threads}, weights_ + layer * n_ * n_, exact_ + layer % 2 * n_,
             exact_ + (layer + 1) % 2 * n_, n_);
    check(
        cudaMemcpyAsync(reference_.data(), exact_ + layers % 2 * n_, n_ * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t index) const override { return reference_[index]; }
  void metrics(std::string_view, Metrics& metrics) override { metrics.report_rate("layers", layers, "layers/s"); }

  void capture_plain(Launch& launch) { capture<Order::plain, false>(launch, plain_); }
  void capture_launch_only(Launch& launch) { capture<Order::wait_first, false>(launch, launch_only_); }
  void capture_pdl(Launch& launch) { capture<Order::weights_first, false>(launch, pdl_); }
  void capture_prefetch(Launch& launch) { capture<Order::weights_first, true>(launch, prefetch_); }
  void capture_cublas(Launch& launch) {
    queue_cublas(launch.stream);
    of_cublas_.capture(launch.stream, [this](cudaStream_t stream) { queue_cublas(stream); });
  }
  void plain_graph(Launch& launch) { plain_.launch(launch.stream); }
  void launch_only(Launch& launch) { launch_only_.launch(launch.stream); }
  void pdl(Launch& launch) { pdl_.launch(launch.stream); }
  void pdl_weight_prefetch(Launch& launch) { prefetch_.launch(launch.stream); }
  void cublas_gemv(Launch& launch) { of_cublas_.launch(launch.stream); }
  void stream_launches(Launch& launch) { queue<Order::plain, false>(launch.stream); }
  void stream_pdl(Launch& launch) { queue<Order::weights_first, false>(launch.stream); }

 private:
  template <Order order, bool prefetches>
  void queue(cudaStream_t stream) const {
    const std::size_t x_bytes = n_ * sizeof(float);
    const Grid grid{.blocks = static_cast<unsigned>(n_ / warps),
                    .threads = threads,
                    .shared_bytes = x_bytes + (prefetches ? ahead_of(static_cast<unsigned>(n_)) * threads * sizeof(uint2) : 0),
                    .overlapping = order != Order::plain};
    const float* from = in_;
    for (unsigned layer = 0; layer < layers; ++layer) {
      float* const to = layer + 1 == layers ? out_.get() : between_ + layer % 2 * n_;
      launch_kernel(stream, layer_kernel<order, prefetches>, grid, weights_ + layer * n_ * n_, from, to, n_);
      from = to;
    }
  }
  // Code is loaded at its first launch, not while a capture is under way: hence one run before it.
  template <Order order, bool prefetches>
  void capture(Launch& launch, Graph& graph) {
    queue<order, prefetches>(launch.stream);
    graph.capture(launch.stream, [this](cudaStream_t stream) { queue<order, prefetches>(stream); });
  }
  // The library has no product of bf16 weights with an fp32 vector: its chain is rounded to bf16 and adds no residual.
  void queue_cublas(cudaStream_t stream) const {
    const auto gemm = Cublas::function<Cublas::GemmEx>("cublasGemmEx");
    const float one = 1, zero = 0;
    const int n = static_cast<int>(n_);
    cublas_->use(stream);
    check(cudaMemsetAsync(rounded_, 0, rounded_.bytes(), stream));
    for (unsigned layer = 0; layer < layers; ++layer)
      check(gemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, n, 1, n, &one, weights_ + layer * n_ * n_, CUDA_R_16BF, n,
                 rounded_ + layer % 2 * n_, CUDA_R_16BF, n, &zero, rounded_ + (layer + 1) % 2 * n_, CUDA_R_16BF, n,
                 CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

  std::size_t n_;
  Input<bf16> weights_;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> between_;
  Scratch<bf16> rounded_;
  Scratch<double> exact_;
  Opened<Cublas> cublas_;
  Graph plain_, launch_only_, pdl_, prefetch_, of_cublas_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair programmatic_dependent_launch{
    .teaches = "a dependent kernel may start early and request its weights while the kernel before it drains",
    .lesson = "pdl",
    .make = make<ProgrammaticDependentLaunch>,
    .baseline = {.name = "plain_graph",
                 .run = call<&ProgrammaticDependentLaunch::plain_graph>,
                 .prepare = call<&ProgrammaticDependentLaunch::capture_plain>},
    .optimized = variants({{.name = "launch_only",
                            .run = call<&ProgrammaticDependentLaunch::launch_only>,
                            .prepare = call<&ProgrammaticDependentLaunch::capture_launch_only>,
                            .same_bits_as = "plain_graph"},
                           {.name = "pdl",
                            .run = call<&ProgrammaticDependentLaunch::pdl>,
                            .prepare = call<&ProgrammaticDependentLaunch::capture_pdl>,
                            .same_bits_as = "plain_graph"},
                           {.name = "pdl_weight_prefetch",
                            .run = call<&ProgrammaticDependentLaunch::pdl_weight_prefetch>,
                            .prepare = call<&ProgrammaticDependentLaunch::capture_prefetch>,
                            .same_bits_as = "plain_graph"}}),
    .controls = variants(
        {{.name = "stream_launches", .run = call<&ProgrammaticDependentLaunch::stream_launches>, .same_bits_as = "plain_graph"},
         {.name = "stream_pdl", .run = call<&ProgrammaticDependentLaunch::stream_pdl>, .same_bits_as = "plain_graph"},
         {.name = "cublas_gemv",
          .run = call<&ProgrammaticDependentLaunch::cublas_gemv>,
          .prepare = call<&ProgrammaticDependentLaunch::capture_cublas>,
          .needs = {.libraries = {Library::cublas}},
          .outputs = no_outputs}}),
    .bound = Bound::memory,
    // 64 layers add a tenth of what is there each, with sums of thousands of products in fp32.
    .tolerance = within(1e-6),
    .needs = {.min_sm = 90},
    .start = Start::immediate,  // the launches are the subject
    .timeline = true,
    .sizes = sizes({{.name = "n", .full = 2048, .multiple = 512, .most = 8192}}),
    .sweep = cases({{"n_1024", "n=1024"}, {"n_2048", "n=2048"}, {"n_4096", "n=4096"}, {"n_8192", "n=8192"}}),
    .edges = cases({{"n_512", "n=512"}, {"n_1536", "n=1536"}, {"n_5120", "n=5120"}}),
};

}  // namespace aisp::ch11
