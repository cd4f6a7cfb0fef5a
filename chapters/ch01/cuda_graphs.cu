// SPDX-License-Identifier: Apache-2.0
// A small policy network: 24 layers of matmul, bias, LayerNorm, ReLU with residual, 96 kernels that each wait for the one before.
// Every kernel is done within a few microseconds, so the host's launches set the pace and the GPU waits between them. Captured
// once as a graph, the same kernels need one call, and what remains is the chain of dependences itself.
#include <aisp/device/reduce.cuh>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "short_matmul.cuh"

namespace aisp::ch01 {
namespace {

using namespace short_matmul;

constexpr int kernels_per_layer = 4;
constexpr int activations = batch * width, layer_weights = width * width;
constexpr float epsilon = 1e-5f;

// The element-wise kernels: one block a row, one thread a value.
__global__ void bias_kernel(float* h, const float* bias) { h[blockIdx.x * width + threadIdx.x] += bias[threadIdx.x]; }

__global__ void relu_residual_kernel(const float* x, const float* h, float* y) {
  const int i = blockIdx.x * width + threadIdx.x;
  y[i] = x[i] + fmaxf(h[i], 0.0f);
}

// One warp a row, whose values stay in registers: no barrier, one read, one write.
__global__ __launch_bounds__(device::warp_size) void layer_norm_kernel(float* h, const float* gain, const float* shift) {
  constexpr int values_per_lane = width / device::warp_size;
  float* const row = h + blockIdx.x * width + threadIdx.x;
  float values[values_per_lane], sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < values_per_lane; ++i) sum += values[i] = row[i * device::warp_size];
  const float mean = device::warp_sum(sum) / width;
#pragma unroll
  for (int i = 0; i < values_per_lane; ++i) squares += (values[i] - mean) * (values[i] - mean);
  const float scale = rsqrtf(device::warp_sum(squares) / width + epsilon);
#pragma unroll
  for (int i = 0; i < values_per_lane; ++i) {
    const int column = i * device::warp_size + threadIdx.x;
    row[i * device::warp_size] = fmaf((values[i] - mean) * scale, gain[column], shift[column]);
  }
}

class CudaGraphs final : public Workload {
 public:
  explicit CudaGraphs(Setup& setup)
      : layers_{setup.scaled(24)},
        in_{setup.input<float>(activations, uniform(-1, 1), {.name = "observations"})},
        weights_{setup.input<float>(layers_ * layer_weights, normal(0, 1.0f / 16), {.name = "weights"})},
        bias_{setup.input<float>(layers_ * width, uniform(-0.5f, 0.5f), {.name = "bias"})},
        gain_{setup.input<float>(layers_ * width, uniform(0.5f, 1.5f), {.name = "gain"})},
        shift_{setup.input<float>(layers_ * width, uniform(-0.5f, 0.5f), {.name = "shift"})},
        out_{setup.output<float>(activations, {.name = "policy"})},
        x_{setup.scratch<float>(activations)},
        h_{setup.scratch<float>(activations)} {}

  // The weights stay in L2 from run to run, so their bytes bound nothing. The floor is a chain of empty kernels: what the real
  // ones take for a trip to L2 and their sums keeps even the graph at a part of it.
  Cost cost() const override {
    const auto layers = static_cast<double>(layers_);
    return {.flops = 2.0 * batch * layer_weights * layers, .dependent_kernels = kernels_per_layer * layers};
  }

  // A value depends on the whole network, so all of it is computed, once per refill.
  void compute_reference(Launch&) override {
    baseline_bits_.clear();
    reference_.resize(activations);
    for (std::size_t i = 0; i < activations; ++i) reference_[i] = in_.host(i);
    for (std::size_t layer = 0; layer < layers_; ++layer) reference_layer(layer);
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  // A graph replays the very same kernels, so not a bit may differ.
  void validate(std::string_view variant) override {
    std::vector<float> bits(activations);
    check(cudaMemcpy(bits.data(), out_, out_.bytes(), cudaMemcpyDeviceToHost));
    if (variant == "stream_launches") baseline_bits_ = bits;
    else if (!baseline_bits_.empty() && std::memcmp(bits.data(), baseline_bits_.data(), out_.bytes()) != 0)
      throw std::runtime_error{"the outputs are not bitwise those of the stream launches"};
  }

  void stream_launches(Launch& launch) { queue(launch.stream); }

  void capture(Launch& launch) {
    queue(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { queue(stream); });
  }
  void captured_graph(Launch& launch) { graph_.launch(launch.stream); }

 private:
  void queue(cudaStream_t stream) {
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      const std::size_t first = layer * width;
      const float* x = layer == 0 ? in_.get() : x_.get();
      float* y = layer + 1 == layers_ ? out_.get() : x_.get();
      matmul_kernel<<<dim3{width / tile_columns, batch / tile_rows}, matmul_threads, 0, stream>>>(
          x, weights_ + layer * layer_weights, h_);
      bias_kernel<<<batch, width, 0, stream>>>(h_, bias_ + first);
      layer_norm_kernel<<<batch, device::warp_size, 0, stream>>>(h_, gain_ + first, shift_ + first);
      relu_residual_kernel<<<batch, width, 0, stream>>>(x, h_, y);
    }
    check(cudaGetLastError());
  }

  void reference_layer(std::size_t layer) {
    std::vector<double> w(layer_weights), h(activations);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = weights_.host(layer * layer_weights + i);
    for (std::size_t row = 0; row < batch; ++row) {
      double* const values = &h[row * width];
      for (std::size_t n = 0; n < width; ++n) values[n] = bias_.host(layer * width + n);
      for (std::size_t k = 0; k < width; ++k)
        for (std::size_t n = 0; n < width; ++n) values[n] += reference_[row * width + k] * w[k * width + n];
      double mean = 0, variance = 0;
      for (std::size_t n = 0; n < width; ++n) mean += values[n] / width;
      for (std::size_t n = 0; n < width; ++n) variance += (values[n] - mean) * (values[n] - mean) / width;
      const double scale = 1 / std::sqrt(variance + double{epsilon});
      for (std::size_t n = 0; n < width; ++n) {
        const std::size_t i = layer * width + n;
        reference_[row * width + n] += std::fmax((values[n] - mean) * scale * gain_.host(i) + shift_.host(i), 0.0);
      }
    }
  }

  std::size_t layers_;
  Input<float> in_, weights_, bias_, gain_, shift_;
  Output<float> out_;
  Scratch<float> x_, h_;
  Graph graph_;
  std::vector<double> reference_;
  std::vector<float> baseline_bits_;
};

}  // namespace

extern constinit const Pair cuda_graphs{
    .teaches = "a graph captured once replays a fixed sequence of small kernels with one launch",
    .lesson = "captured_graph",
    .make = make<CudaGraphs>,
    .baseline = {.name = "stream_launches", .run = call<&CudaGraphs::stream_launches>},
    .optimized =
        variants({{.name = "captured_graph", .run = call<&CudaGraphs::captured_graph>, .prepare = call<&CudaGraphs::capture>}}),
    .bound = Bound::latency,
    // The residual is the sum of 24 normalized layers, and a layer's own roundings (a 256-term sum, a normalization) shrink
    // beside it: about 1e-7 in all.
    .tolerance = within(1e-6),
    .cache = Cache::hot,        // a policy is evaluated again and again
    .start = Start::immediate,  // the launches are the subject
};

}  // namespace aisp::ch01
