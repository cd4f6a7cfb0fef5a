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

namespace aisp::ch01 {
namespace {

constexpr int batch = 32, width = 256, kernels_per_layer = 4;
constexpr int activations = batch * width, layer_weights = width * width;
constexpr float epsilon = 1e-5f;

constexpr int tile_rows = 4, tile_columns = 8;            // 256 blocks: all SMs take part
constexpr int depth = 2, matmul_threads = width / depth;  // of the dot products each thread makes `depth` terms
static_assert(tile_rows * tile_columns == device::warp_size, "at the end of the sums each lane owns one output");

// Sums 32 outputs over the lanes of a warp. Two lanes swap halves: each keeps one half of the outputs and gives the other away,
// until lane i holds output i, as sums[0]. That takes 31 shuffles instead of the 160 of 32 separate sums.
template <int half>
__device__ __forceinline__ void exchange_halves(float (&sums)[device::warp_size], int lane) {
  const bool upper = (lane & half) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const float low = sums[i], high = sums[i + half];
    sums[i] = (upper ? high : low) + __shfl_xor_sync(device::whole_warp, upper ? low : high, half);
  }
  if constexpr (half > 1) exchange_halves<half / 2>(sums, lane);
}

// h = x w. The kernel is over in about one trip to L2: every thread asks for all it needs at once, namely x and w for two values
// of k, multiplies, and the sums over k are made across threads.
__global__ __launch_bounds__(matmul_threads) void matmul_kernel(const float* x, const float* w, float* h) {
  __shared__ float partial[matmul_threads / device::warp_size][device::warp_size];
  const int first_column = blockIdx.x * tile_columns, first_row = blockIdx.y * tile_rows, k = threadIdx.x * depth;
  const int warp = threadIdx.x / device::warp_size, lane = threadIdx.x % device::warp_size;
  float2 xs[tile_rows];
  float4 ws[depth][tile_columns / 4];
#pragma unroll
  for (int row = 0; row < tile_rows; ++row) xs[row] = *reinterpret_cast<const float2*>(x + (first_row + row) * width + k);
#pragma unroll
  for (int i = 0; i < depth; ++i)
#pragma unroll
    for (int j = 0; j < tile_columns / 4; ++j)
      ws[i][j] = *reinterpret_cast<const float4*>(w + (k + i) * width + first_column + j * 4);

  float sums[device::warp_size];  // output [row][column] of the tile at row * tile_columns + column
#pragma unroll
  for (int row = 0; row < tile_rows; ++row)
#pragma unroll
    for (int j = 0; j < tile_columns / 4; ++j) {
      float* const sum = sums + row * tile_columns + j * 4;
      sum[0] = fmaf(xs[row].y, ws[1][j].x, xs[row].x * ws[0][j].x);
      sum[1] = fmaf(xs[row].y, ws[1][j].y, xs[row].x * ws[0][j].y);
      sum[2] = fmaf(xs[row].y, ws[1][j].z, xs[row].x * ws[0][j].z);
      sum[3] = fmaf(xs[row].y, ws[1][j].w, xs[row].x * ws[0][j].w);
    }

  exchange_halves<device::warp_size / 2>(sums, lane);
  partial[warp][lane] = sums[0];
  __syncthreads();
  if (warp != 0) return;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < matmul_threads / device::warp_size; ++part) sum += partial[part][lane];
  h[(first_row + lane / tile_columns) * width + first_column + lane % tile_columns] = sum;
}

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

  // The weights stay in L2 from run to run, so their bytes bound nothing.
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
