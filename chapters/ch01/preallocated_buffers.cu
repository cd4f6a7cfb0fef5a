// SPDX-License-Identifier: Apache-2.0
// Sixteen linear layers, each a product into fp32 scratch, then bias and GELU into the layer's output. A layer that allocates
// both and frees what is used up spends more time in the driver than the GPU spends on the math, and each cudaFree waits for the
// GPU, so nothing is ever queued ahead. Sizes that are known in advance make a plan of offsets into one allocation instead: one
// scratch for all layers, and two activations that take turns.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_array.hpp"

namespace aisp::ch01 {
namespace {

using bf16 = __nv_bfloat16;
constexpr std::size_t layers = 16, tokens = 256;
constexpr int threads = 256, values = 8;  // of a thread: 16 bytes of output

__global__ __launch_bounds__(threads) void bias_gelu_kernel(const float* product, const float* bias, bf16* out, int width) {
  using Quad = device::Vector16<float>;
  const int first = (blockIdx.x * threads + threadIdx.x) * values, column = first % width;
  device::Vector16<bf16> packed;
#pragma unroll
  for (int half = 0; half < values; half += Quad::size()) {
    const Quad x = *reinterpret_cast<const Quad*>(product + first + half);
    const Quad b = *reinterpret_cast<const Quad*>(bias + column + half);
#pragma unroll
    for (int i = 0; i < Quad::size(); ++i) {
      const float z = x[i] + b[i];
      packed[half + i] = __float2bfloat16_rn(0.5f * z * (1.0f + erff(z * 0.70710678f)));
    }
  }
  *reinterpret_cast<device::Vector16<bf16>*>(out + first) = packed;
}

__host__ __device__ double gelu(double z) { return 0.5 * z * (1 + erf(z * 0.70710678118654752)); }

// A layer of the reference: float64 from beginning to end, nothing is rounded between the layers.
constexpr int tile = 16;
__global__ void reference_kernel(const double* x, const bf16* w, const float* bias, double* y, int width) {
  __shared__ double xs[tile][tile], ws[tile][tile];
  const int row = blockIdx.y * tile + threadIdx.y, column = blockIdx.x * tile + threadIdx.x;
  double sum = static_cast<double>(bias[column]);
  for (int k = 0; k < width; k += tile) {
    xs[threadIdx.y][threadIdx.x] = x[row * width + k + threadIdx.x];
    ws[threadIdx.y][threadIdx.x] = static_cast<double>(__bfloat162float(w[(k + threadIdx.y) * width + column]));
    __syncthreads();
    for (int i = 0; i < tile; ++i) sum += xs[threadIdx.y][i] * ws[i][threadIdx.x];
    __syncthreads();
  }
  y[row * width + column] = gelu(sum);
}

// Offsets in the arena. Layer i writes activation i % 2 and reads the other one.
struct Plan {
  std::size_t product, activations[2], bytes;
  explicit Plan(std::size_t elements)
      : product{0},
        activations{elements * sizeof(float), elements * (sizeof(float) + sizeof(bf16))},
        bytes{elements * (sizeof(float) + 2 * sizeof(bf16))} {}
};

class PreallocatedBuffers final : public Workload {
 public:
  explicit PreallocatedBuffers(Setup& setup)
      : width_{setup.scaled(4096, 256)},
        elements_{tokens * width_},
        plan_{elements_},
        in_{setup.input<bf16>(elements_, normal(0, 1), {.name = "tokens"})},
        // Weights and bias of this size keep the activations about as large as they are from layer to layer.
        weights_{setup.input<bf16>(layers * width_ * width_, uniform(-weight_limit(), weight_limit()), {.name = "weights"})},
        bias_{setup.input<float>(layers * width_, uniform(-1, 1), {.name = "bias"})},
        out_{setup.output<bf16>(elements_, {.name = "results"})},
        arena_{setup.scratch<std::byte>(plan_.bytes, {.name = "arena"})},
        exact_{setup.scratch<double>(2 * elements_, {.name = "float64 activations"})} {}

  // The floor is the math at full rate: products of 256 rows, each in a kernel of its own after the one before, do not reach it.
  Cost cost() const override {
    return {.flops = 2.0 * layers * tokens * static_cast<double>(width_ * width_),
            .math = Math::bf16,
            .bytes = static_cast<double>(in_.bytes() + weights_.bytes() + bias_.bytes() + out_.bytes()),
            .dependent_kernels = 2.0 * layers};
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  // All tokens through all layers, with plain float64 kernels that the CPU checks layer by layer.
  void compute_reference(Launch& launch) override {
    std::vector<double> before(elements_);
    reference_.resize(elements_);
    for (std::size_t i = 0; i < elements_; ++i) reference_[i] = in_.host(i);
    double *x = exact_, *y = exact_ + elements_;
    check(cudaMemcpyAsync(x, reference_.data(), elements_ * sizeof(double), cudaMemcpyHostToDevice, launch.stream));
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const dim3 blocks{static_cast<unsigned>(width_ / tile), tokens / tile};
      reference_kernel<<<blocks, dim3{tile, tile}, 0, launch.stream>>>(x, weights(layer), bias(layer), y, width());
      check(cudaGetLastError());
      check(cudaStreamSynchronize(launch.stream));
      std::swap(before, reference_);
      check(cudaMemcpy(reference_.data(), y, elements_ * sizeof(double), cudaMemcpyDeviceToHost));
      check_layer(layer, before);
      std::swap(x, y);
    }
  }

  void plan_products(Launch&) {
    if (gemm_) return;
    cublaslt_ = std::make_unique<CublasLt>();
    gemm_ = std::make_unique<MatmulPlan>(*cublaslt_, MatmulProblem{.m = tokens, .n = width_, .k = width_, .result = CUDA_R_32F});
  }

  // Each layer asks for what it needs and frees what nobody reads again. The caller owns the first input and the last output.
  void allocate_per_layer(Launch& launch) {
    DeviceArray<bf16> in;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      auto out = layer + 1 < layers ? allocate<bf16>(elements_) : nullptr;
      const auto product = allocate<float>(elements_);
      run_layer(launch, layer, in ? in.get() : in_.get(), product.get(), out ? out.get() : out_.get());
      in = std::move(out);  // frees the input of this layer
    }
  }
  void arena(Launch& launch) {
    const bf16* in = in_;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      bf16* const out = layer + 1 < layers ? planned<bf16>(plan_.activations[layer % 2]) : out_.get();
      run_layer(launch, layer, in, planned<float>(plan_.product), out);
      in = out;
    }
  }

 private:
  int width() const { return static_cast<int>(width_); }
  float weight_limit() const { return 2 / std::sqrt(static_cast<float>(width_)); }
  const bf16* weights(std::size_t layer) const { return weights_ + layer * width_ * width_; }
  const float* bias(std::size_t layer) const { return bias_ + layer * width_; }

  template <class T>
  T* planned(std::size_t offset) const {
    return reinterpret_cast<T*>(arena_ + offset);
  }

  void run_layer(Launch& launch, std::size_t layer, const bf16* in, float* product, bf16* out) const {
    gemm_->run(launch.stream, in, weights(layer), product);
    const auto blocks = static_cast<unsigned>(elements_ / (threads * values));
    bias_gelu_kernel<<<blocks, threads, 0, launch.stream>>>(product, bias(layer), out, width());
    check(cudaGetLastError());
  }

  void check_layer(std::size_t layer, const std::vector<double>& before) const {
    for (std::size_t sample = 0; sample < 16; ++sample) {
      const std::size_t index = random_bits(layer, sample) % elements_, row = index / width_, column = index % width_;
      double sum = bias_.host(layer * width_ + column);
      for (std::size_t k = 0; k < width_; ++k)
        sum += before[row * width_ + k] * weights_.host((layer * width_ + k) * width_ + column);
      if (!(std::abs(gelu(sum) - reference_[index]) < 1e-9))
        throw std::runtime_error{"the float64 reference of layer " + std::to_string(layer) + " is wrong"};
    }
  }

  std::size_t width_, elements_;  // of an activation
  Plan plan_;
  Input<bf16> in_, weights_;
  Input<float> bias_;
  Output<bf16> out_;
  Scratch<std::byte> arena_;
  Scratch<double> exact_;
  std::unique_ptr<CublasLt> cublaslt_;
  std::unique_ptr<MatmulPlan> gemm_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair preallocated_buffers{
    .teaches =
        "cudaMalloc takes the driver's time and cudaFree also waits for the GPU, so plan memory once, outside the hot path",
    .lesson = "arena",
    .make = make<PreallocatedBuffers>,
    .baseline = {.name = "allocate_per_layer",
                 .run = call<&PreallocatedBuffers::allocate_per_layer>,
                 .prepare = call<&PreallocatedBuffers::plan_products>},
    .optimized = variants(
        {{.name = "arena", .run = call<&PreallocatedBuffers::arena>, .prepare = call<&PreallocatedBuffers::plan_products>}}),
    .bound = Bound::latency,
    // Each layer rounds its results to bf16, 1.6e-3, and the layers after it pass that on damped by the bias.
    .tolerance = within(4e-3),
    .needs = {.libraries = {Library::cublaslt}},
    .start = Start::immediate,  // allocations are host calls, and those of the baseline wait for the GPU
};

}  // namespace aisp::ch01
