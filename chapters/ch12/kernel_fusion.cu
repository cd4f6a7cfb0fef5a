// SPDX-License-Identifier: Apache-2.0
// A small policy network, 24 layers of matmul, bias, LayerNorm, ReLU with residual, for a batch of eight. In a graph its 96
// kernels need one launch, but each node still costs the start of a kernel, and each kernel a trip to L2 and back. Fused, a layer
// is one node; and as eight blocks hold all columns of a layer, the whole chain fits into one cluster, whose blocks hand on
// activations through each other's shared memory and wait at a barrier of their own.
#include <aisp/device/cluster.cuh>
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/dispatch.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <cooperative_groups.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "policy_layer.cuh"

namespace aisp::ch12 {
namespace {

constexpr int blocks_of_chain = 8, threads = batch * device::warp_size;

// The four kernels of a layer.
constexpr int columns_of_block = 8;

template <int width>
__global__ void matmul_kernel(const float* x, const float* weights, float* h) {
  using Part = Tile<width, columns_of_block>;
  __shared__ __align__(16) float partial[Part::warps * batch * columns_of_block];
  const int first = blockIdx.x * columns_of_block;
  Part part;
  part.load(weights, first);
  part.multiply(x, partial);
  __syncthreads();
  for (int i = threadIdx.x; i < batch * columns_of_block; i += blockDim.x)
    h[i / columns_of_block * width + first + i % columns_of_block] =
        Part::sum(partial, i / columns_of_block, i % columns_of_block);
}
template <int width>
__global__ void bias_kernel(float* h, const float* bias) {
  h[blockIdx.x * width + threadIdx.x] += bias[threadIdx.x];
}
template <int width>
__global__ void layer_norm_kernel(float* h, Network net, int layer) {
  Row<width> row;
  row.load(net, layer);
  float* const mine = h + blockIdx.x * width;
  float values[Row<width>::values];
#pragma unroll
  for (int i = 0; i < Row<width>::values; ++i) values[i] = mine[row.column(i)];
  row.normalize(values);
#pragma unroll
  for (int i = 0; i < Row<width>::values; ++i) mine[row.column(i)] = fmaf(values[i], row.gain[i], row.shift[i]);
}
template <int width>
__global__ void relu_residual_kernel(const float* x, const float* h, float* y) {
  const int i = blockIdx.x * width + threadIdx.x;
  y[i] = x[i] + fmaxf(h[i], 0.0f);
}
__global__ void empty_kernel() {}

// Layers one after the other for one row of the batch: the block meets no other, and reads all weights by itself.
constexpr int row_threads = 1024;

template <int width>
__global__ __launch_bounds__(row_threads) void row_kernel(Network net, const float* from, float* to, int first_layer,
                                                          int end_layer) {
  constexpr int across = width / 4, groups = row_threads / across, inputs = width / groups;
  __shared__ float x[width], sums[device::largest_block_in_warps];
  __shared__ float4 partial[groups][across];
  const int column = threadIdx.x, fours = column % across, group = column / across;
  const bool owner = column < width;  // of a column
  if (owner) x[column] = from[blockIdx.x * width + column];
  for (int layer = first_layer; layer < end_layer; ++layer) {
    __syncthreads();
    const int place = layer * width + column;
    float h = owner ? net.bias[place] : 0;
    const float gain = owner ? net.gain[place] : 0, shift = owner ? net.shift[place] : 0;
    const float4* w = reinterpret_cast<const float4*>(net.weights + static_cast<std::size_t>(layer) * width * width) + fours;
    float4 sum{};
#pragma unroll 4
    for (int i = 0; i < inputs; ++i) {
      const int k = i * groups + group;
      const float4 weight = w[k * across];
      sum.x = fmaf(x[k], weight.x, sum.x);
      sum.y = fmaf(x[k], weight.y, sum.y);
      sum.z = fmaf(x[k], weight.z, sum.z);
      sum.w = fmaf(x[k], weight.w, sum.w);
    }
    partial[group][fours] = sum;
    __syncthreads();
    if (owner)
      for (int g = 0; g < groups; ++g) h += reinterpret_cast<const float*>(partial[g])[column];
    const float mean = device::block_sum(h, sums) / width;
    const float centered = owner ? h - mean : 0;
    const float scale = rsqrtf(device::block_sum(centered * centered, sums) / width + epsilon);
    if (owner) x[column] += fmaxf(fmaf(centered * scale, gain, shift), 0.0f);
  }
  if (owner) to[blockIdx.x * width + column] = x[column];
}

// How blocks of the chain hand on their columns of h: to each other's shared memory, or through global memory.
struct Cluster {
  static __device__ unsigned rank() { return device::cluster_rank(); }
  static __device__ void store(float* h, float*, int place, float value) {
#pragma unroll
    for (unsigned block = 0; block < blocks_of_chain; ++block)
      device::store_remote_f32(device::remote_address(h + place, block), value);
  }
  static __device__ void arrive() { device::cluster_arrive(); }
  static __device__ void wait() { device::cluster_wait(); }
  static __device__ float load(const float* h, const float*, int place) { return h[place]; }
};
struct WholeGrid {
  static __device__ unsigned rank() { return blockIdx.x; }
  static __device__ void store(float*, float* exchange, int place, float value) { __stcg(exchange + place, value); }
  static __device__ void arrive() {}
  static __device__ void wait() { cooperative_groups::this_grid().sync(); }
  static __device__ float load(const float*, const float* exchange, int place) { return __ldcg(exchange + place); }
};

template <int width>
struct ChainMemory {
  using Part = Tile<width, width / blocks_of_chain>;
  float x[batch * width], h[2][batch * width], partial[Part::warps * batch * width / blocks_of_chain];
};

// All layers in one kernel of eight blocks. Each computes its columns of h for all rows, and, once all others are there, the
// whole next x: that is little work, and saves a second barrier. A warp has a row. The h of a layer is read while that of the
// next one may arrive.
template <int width, class Exchange, bool prefetch>
__global__ __launch_bounds__(threads, 1) void chain_kernel(Network net, float* exchange) {
  extern __shared__ __align__(16) unsigned char memory[];
  ChainMemory<width>& shared = *reinterpret_cast<ChainMemory<width>*>(memory);
  constexpr int columns = width / blocks_of_chain, values = Row<width>::values;
  constexpr int outputs = (batch * columns + threads - 1) / threads;  // of a thread
  const int first_column = static_cast<int>(Exchange::rank()) * columns, first_value = threadIdx.x / device::warp_size * width;
  typename ChainMemory<width>::Part part;
  Row<width> row, next_row;
  float bias[outputs], mine[values];
  const auto request = [&](int layer) {
    part.load(net.weights + static_cast<std::size_t>(layer) * width * width, first_column);
#pragma unroll
    for (int i = 0; i < outputs; ++i) bias[i] = net.bias[layer * width + first_column + (i * threads + threadIdx.x) % columns];
    next_row.load(net, layer);
  };
#pragma unroll
  for (int i = 0; i < values; ++i) {
    const int place = first_value + Row<width>::column(i);
    shared.x[place] = mine[i] = net.in[place];
  }
  Exchange::arrive();
  if (prefetch) request(0);
  Exchange::wait();  // all blocks have started, and x is there
  for (int layer = 0; layer < net.layers; ++layer) {
    if (!prefetch) request(layer);
    row = next_row;
    part.multiply(shared.x, shared.partial);
    __syncthreads();
    float *const local = shared.h[layer % 2], *const global = exchange + layer % 2 * batch * width;
#pragma unroll
    for (int i = 0; i < outputs; ++i) {
      const int output = i * threads + threadIdx.x, r = output / columns, c = output % columns;
      if (r < batch) Exchange::store(local, global, r * width + first_column + c, part.sum(shared.partial, r, c) + bias[i]);
    }
    Exchange::arrive();
    if (prefetch && layer + 1 < net.layers) request(layer + 1);
    Exchange::wait();
    float h[values];
#pragma unroll
    for (int i = 0; i < values; ++i) h[i] = Exchange::load(local, global, first_value + row.column(i));
    row.add_to(mine, h);
#pragma unroll
    for (int i = 0; i < values; ++i) shared.x[first_value + row.column(i)] = mine[i];
    __syncthreads();
  }
  if (Exchange::rank() != 0) return;
#pragma unroll
  for (int i = 0; i < values; ++i) net.out[first_value + Row<width>::column(i)] = mine[i];
}

class KernelFusion final : public Workload {
 public:
  explicit KernelFusion(Setup& setup)
      : width_{setup.size("width")},
        layers_{setup.scaled(24)},
        in_{setup.input<float>(batch * width_, uniform(-1, 1), {.name = "observations"})},
        weights_{setup.input<float>(layers_ * width_ * width_, normal(0, 1.0f / 16), {.name = "weights"})},
        bias_{setup.input<float>(layers_ * width_, uniform(-0.5f, 0.5f), {.name = "bias"})},
        gain_{setup.input<float>(layers_ * width_, uniform(0.5f, 1.5f), {.name = "gain"})},
        shift_{setup.input<float>(layers_ * width_, uniform(-0.5f, 0.5f), {.name = "shift"})},
        out_{setup.output<float>(batch * width_, {.name = "policy"})},
        x_{setup.scratch<float>(batch * width_)},
        h_{setup.scratch<float>(2 * batch * width_)} {}

  // The bound of a cluster's eight SMs: weights come from L2 at 64 bytes a clock, and when a layer's are there, each SM has 128
  // multiply-adds a clock.
  Cost cost() const override {
    const double clocks_s = 1e3 * device_attribute(cudaDevAttrClockRate), weights = static_cast<double>(weights_.size());
    return {.seconds = (weights * sizeof(float) / 64 + weights * batch / 128) / blocks_of_chain / clocks_s};
  }

  // A value depends on the whole network, so all of it is computed, once per refill.
  void compute_reference(Launch&) override {
    reference_.resize(batch * width_);
    for (std::size_t i = 0; i < reference_.size(); ++i) reference_[i] = in_.host(i);
    for (std::size_t layer = 0; layer < layers_; ++layer) reference_layer(layer);
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  void capture_kernels(Launch& launch) {
    record(launch, kernels_, [this](cudaStream_t stream) { queue_kernels(stream); });
  }
  void kernel_nodes(Launch& launch) { kernels_.launch(launch.stream); }
  void capture_layers(Launch& launch) {
    record(launch, fused_layers_, [this](cudaStream_t stream) { queue_layers(stream); });
  }
  void layer_nodes(Launch& launch) { fused_layers_.launch(launch.stream); }
  void one_cluster(Launch& launch) { run_chain<Cluster, false>(launch, {.cluster = blocks_of_chain}); }
  void one_cluster_prefetch(Launch& launch) { run_chain<Cluster, true>(launch, {.cluster = blocks_of_chain}); }
  void grid_barrier(Launch& launch) { run_chain<WholeGrid, true>(launch, {.cooperative = true}); }
  void row_per_block(Launch& launch) {
    by_width([&]<int width>() { launch(row_kernel<width>, {batch, row_threads}, network(), in_, out_, 0, layers_); });
  }
  void capture_empty(Launch& launch) {
    record(launch, empty_, [this](cudaStream_t stream) {
      for (std::size_t i = 0; i < 4 * layers_; ++i) launch_kernel(stream, empty_kernel, {1, 1});
    });
  }
  void empty_nodes(Launch& launch) { empty_.launch(launch.stream); }

 private:
  template <class Run>
  void by_width(const Run& run) const {
    dispatch<64, 128, 256, 512>("width", width_, run);
  }
  Network network() const { return {in_, weights_, bias_, gain_, shift_, out_, static_cast<int>(layers_)}; }

  template <class Queue>
  static void record(Launch& launch, Graph& graph, const Queue& queue) {
    queue(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph.capture(launch.stream, queue);
  }
  void queue_kernels(cudaStream_t stream) {
    by_width([&]<int width>() {
      constexpr unsigned matmul_threads = Tile<width, columns_of_block>::warps * device::warp_size;
      for (std::size_t layer = 0; layer < layers_; ++layer) {
        const float* x = layer == 0 ? in_.get() : x_.get();
        float* y = layer + 1 == layers_ ? out_.get() : x_.get();
        launch_kernel(stream, matmul_kernel<width>, {width / columns_of_block, matmul_threads}, x,
                      weights_ + layer * width * width, h_);
        launch_kernel(stream, bias_kernel<width>, {batch, width}, h_, bias_ + layer * width);
        launch_kernel(stream, layer_norm_kernel<width>, {batch, device::warp_size}, h_, network(), layer);
        launch_kernel(stream, relu_residual_kernel<width>, {batch, width}, x, h_, y);
      }
    });
  }
  void queue_layers(cudaStream_t stream) {
    by_width([&]<int width>() {
      for (std::size_t layer = 0; layer < layers_; ++layer)
        launch_kernel(stream, row_kernel<width>, {batch, row_threads}, network(), layer == 0 ? in_.get() : x_.get(),
                      layer + 1 == layers_ ? out_.get() : x_.get(), layer, layer + 1);
    });
  }
  template <class Exchange, bool prefetch>
  void run_chain(Launch& launch, Grid grid) {
    by_width([&]<int width>() {
      grid.blocks = blocks_of_chain;
      grid.threads = threads;
      grid.shared_bytes = sizeof(ChainMemory<width>);
      launch(chain_kernel<width, Exchange, prefetch>, grid, network(), h_);
    });
  }

  void reference_layer(std::size_t layer) {
    std::vector<double> w(width_ * width_), h(width_);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = weights_.host(layer * w.size() + i);
    for (std::size_t row = 0; row < batch; ++row) {
      double* const x = &reference_[row * width_];
      for (std::size_t n = 0; n < width_; ++n) h[n] = bias_.host(layer * width_ + n);
      for (std::size_t k = 0; k < width_; ++k)
        for (std::size_t n = 0; n < width_; ++n) h[n] += x[k] * w[k * width_ + n];
      double mean = 0, variance = 0;
      for (const double value : h) mean += value / static_cast<double>(width_);
      for (const double value : h) variance += (value - mean) * (value - mean) / static_cast<double>(width_);
      const double scale = 1 / std::sqrt(variance + double{epsilon});
      for (std::size_t n = 0; n < width_; ++n) {
        const std::size_t i = layer * width_ + n;
        x[n] += std::fmax((h[n] - mean) * scale * gain_.host(i) + shift_.host(i), 0.0);
      }
    }
  }

  std::size_t width_, layers_;
  Input<float> in_, weights_, bias_, gain_, shift_;
  Output<float> out_;
  Scratch<float> x_, h_;
  Graph kernels_, fused_layers_, empty_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair kernel_fusion{
    .teaches = "fused into one cluster, a chain of small layers needs neither graph nodes nor all weights in every SM",
    .lesson = "one_cluster",
    .make = make<KernelFusion>,
    .baseline = {.name = "kernel_nodes",
                 .run = call<&KernelFusion::kernel_nodes>,
                 .prepare = call<&KernelFusion::capture_kernels>},
    .optimized = variants(
        {{.name = "layer_nodes", .run = call<&KernelFusion::layer_nodes>, .prepare = call<&KernelFusion::capture_layers>},
         {.name = "one_cluster", .run = call<&KernelFusion::one_cluster>, .needs = {.min_sm = 90, .dsmem = true}},
         {.name = "one_cluster_prefetch",
          .run = call<&KernelFusion::one_cluster_prefetch>,
          .needs = {.min_sm = 90, .dsmem = true},
          .same_bits_as = "one_cluster"}}),
    .controls = variants({{.name = "row_per_block", .run = call<&KernelFusion::row_per_block>, .same_bits_as = "layer_nodes"},
                          {.name = "grid_barrier",
                           .run = call<&KernelFusion::grid_barrier>,
                           .needs = {.attributes = {cudaDevAttrCooperativeLaunch}}},
                          {.name = "empty_nodes",
                           .run = call<&KernelFusion::empty_nodes>,
                           .prepare = call<&KernelFusion::capture_empty>,
                           .outputs = no_outputs}}),
    .bound = Bound::latency,
    // The residual is the sum of 24 normalized layers, and a layer's own roundings (a 256-term sum, a normalization) shrink
    // beside it: about 1e-7 in all.
    .tolerance = within(1e-6),
    .cache = Cache::hot,  // a policy is evaluated again and again
    .sizes = sizes({{.name = "width", .full = 256, .multiple = 64, .most = 512, .scales = false}}),
    .sweep =
        cases({{"width_64", "width=64"}, {"width_128", "width=128"}, {"width_256", "width=256"}, {"width_512", "width=512"}}),
};

}  // namespace aisp::ch12
