// SPDX-License-Identifier: Apache-2.0
// Ten decode steps of a small model, 200 kernels each. From step to step twelve of them, which attend a request's cache, need
// another pointer and another length. A graph that is captured and instantiated anew for each step costs more than it saves; one
// that is kept, and gets new parameters in place, leaves the host almost nothing to do.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

#include "graph_nodes.hpp"

namespace aisp::ch12 {
namespace {

constexpr int width = 256, heads = 4, head_width = width / heads, threads = 256;
constexpr float kept = 0.8f;  // of the state, by each kernel
constexpr int matrices = 16, caches = 32, most_keys = threads;
constexpr int lanes_per_key = 8, dense_blocks = width / (threads / device::warp_size);
constexpr std::size_t steps = 10, cache_values = std::size_t{most_keys} * width;

// The parameters that change from step to step.
struct KvCache {
  const float *keys, *values;
  int length;
};

__device__ void attend(const float* x, float* y, const KvCache& cache) {
  __shared__ float shares[most_keys], shared[device::largest_block_in_warps], sums[threads];
  const int first = blockIdx.x * head_width, part = threadIdx.x % lanes_per_key;
  constexpr int fours = head_width / 4 / lanes_per_key;
  float4 query[fours];
#pragma unroll
  for (int i = 0; i < fours; ++i) query[i] = *reinterpret_cast<const float4*>(x + first + (i * lanes_per_key + part) * 4);
  for (int key = threadIdx.x / lanes_per_key; key - static_cast<int>(threadIdx.x) / lanes_per_key < cache.length;
       key += threads / lanes_per_key) {
    float score = 0;
    if (key < cache.length)
#pragma unroll
      for (int i = 0; i < fours; ++i) {
        const float4 k = *reinterpret_cast<const float4*>(cache.keys + key * width + first + (i * lanes_per_key + part) * 4);
        score += query[i].x * k.x + query[i].y * k.y + query[i].z * k.z + query[i].w * k.w;
      }
    score = device::warp_sum<lanes_per_key>(score);
    if (part == 0 && key < cache.length) shares[key] = score * 0.125f;
  }
  __syncthreads();
  const float score = static_cast<int>(threadIdx.x) < cache.length ? shares[threadIdx.x] : -INFINITY;
  const float most = device::block_max(score, -INFINITY, shared);
  const float share = expf(score - most);
  const float total = device::block_sum(share, shared);
  shares[threadIdx.x] = share / total;
  __syncthreads();
  const int column = first + threadIdx.x % head_width;
  float sum = 0;
#pragma unroll 4
  for (int key = threadIdx.x / head_width; key < cache.length; key += threads / head_width)
    sum += shares[key] * cache.values[key * width + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= head_width) return;
  for (int i = head_width; i < threads; i += head_width) sum += sums[i + threadIdx.x];
  y[column] = kept * x[column] + sum;
}

__global__ __launch_bounds__(threads) void attention_kernel(const float* x, float* y, KvCache cache) { attend(x, y, cache); }
__global__ __launch_bounds__(threads) void looked_up_attention_kernel(const float* x, float* y, const KvCache* cache) {
  attend(x, y, *cache);
}

// y = kept x + relu(W x / rms(x) + bias), an output a warp.
__global__ __launch_bounds__(threads) void dense_kernel(const float* x, float* y, const float* weights, const float* bias) {
  const int row = (blockIdx.x * threads + threadIdx.x) / device::warp_size, lane = threadIdx.x % device::warp_size;
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < width / device::warp_size; ++i) {
    const float value = x[i * device::warp_size + lane];
    sum = fmaf(weights[row * width + i * device::warp_size + lane], value, sum);
    squares = fmaf(value, value, squares);
  }
  sum = device::warp_sum(sum) * rsqrtf(device::warp_sum(squares) / width);
  if (lane == 0) y[row] = kept * x[row] + fmaxf(sum + bias[row], 0.0f);
}

// The same two in float64 by plain loops, for the reference.
__global__ __launch_bounds__(threads) void exact_attention_kernel(const double* x, double* y, KvCache cache) {
  __shared__ double shares[most_keys], shared[device::largest_block_in_warps];
  const int first = blockIdx.x * head_width, key = threadIdx.x;
  double score = 0;
  for (int i = first; key < cache.length && i < first + head_width; ++i) score += x[i] * cache.keys[key * width + i];
  score = key < cache.length ? score * 0.125 : -INFINITY;
  const double share = exp(score - device::block_max(score, -double{INFINITY}, shared));
  shares[key] = share / device::block_sum(share, shared);
  __syncthreads();
  if (key >= head_width) return;
  double sum = double{kept} * x[first + key];
  for (int i = 0; i < cache.length; ++i) sum += shares[i] * cache.values[i * width + first + key];
  y[first + key] = sum;
}
__global__ __launch_bounds__(threads) void exact_dense_kernel(const double* x, double* y, const float* weights,
                                                              const float* bias) {
  const int row = (blockIdx.x * threads + threadIdx.x) / device::warp_size;
  double sum = 0, squares = 0;
  for (int i = threadIdx.x % device::warp_size; i < width; i += device::warp_size) {
    sum += weights[row * width + i] * x[i];
    squares += x[i] * x[i];
  }
  sum = device::warp_sum(sum) / sqrt(device::warp_sum(squares) / width);
  if (threadIdx.x % device::warp_size == 0) y[row] = double{kept} * x[row] + fmax(sum + bias[row], 0.0);
}

// Before the steps, in every variant.
__global__ __launch_bounds__(width) void begin_kernel(const float* first_state, float* state) {
  state[threadIdx.x] = first_state[threadIdx.x];
}

// The last kernel of a step: which step it is stands in device memory, so that this one never changes.
__global__ __launch_bounds__(width) void record_kernel(const float* x, float* state, float* out, unsigned* step) {
  const unsigned mine = *step;
  __syncthreads();
  state[threadIdx.x] = out[mine * width + threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 0) *step = mine + 1;
}

// Runs `work` and adds the microseconds that the host needs for it.
template <class Work>
void timed(double& total_us, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  total_us += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

class GraphUpdate final : public Workload {
 public:
  explicit GraphUpdate(Setup& setup)
      : nodes_{setup.size("nodes")},
        changed_{setup.size("changed")},
        first_state_{setup.input<float>(width, uniform(-1, 1), {.name = "first state"})},
        weights_{setup.input<float>(std::size_t{matrices} * width * width, normal(0, 1.0f / 16), {.name = "weights"})},
        bias_{setup.input<float>(std::size_t{matrices} * width, uniform(-0.5f, 0.5f), {.name = "bias"})},
        keys_{setup.input<float>(caches * cache_values, uniform(-1, 1), {.name = "keys"})},
        values_{setup.input<float>(caches * cache_values, uniform(-1, 1), {.name = "values"})},
        step_{setup.inout<unsigned>(1, integers(0, 0), {.name = "step"})},
        out_{setup.output<float>(steps * width, {.name = "hidden states"})},
        state_{setup.scratch<float>(2 * width)},
        exact_{setup.scratch<double>((2 + steps) * width)},
        device_caches_{setup.scratch<KvCache>(changed_)},
        host_caches_{setup.scratch<KvCache>(steps * changed_, {.memory = Memory::pinned})} {
    if (changed_ >= nodes_) throw Unsupported("the last node of a step records it, so fewer nodes change than there are");
  }

  Cost cost() const override { return {.dependent_kernels = static_cast<double>(steps * nodes_)}; }

  void compute_reference(Launch& launch) override {
    double *const states = exact_, *const results = exact_ + 2 * width;
    reference_.resize(steps * width);
    for (std::size_t i = 0; i < width; ++i) reference_[i] = first_state_.host(i);
    check(cudaMemcpyAsync(states, reference_.data(), width * sizeof(double), cudaMemcpyHostToDevice, launch.stream));
    const double* x = states;
    for (std::size_t step = 0; step < steps; ++step)
      for_each_node([&](std::size_t node, std::size_t attention) {
        double* const y = node + 2 == nodes_ ? results + step * width : states + (node + 1) % 2 * width;
        if (attention < changed_) launch(exact_attention_kernel, {heads, threads}, x, y, cache(step, attention));
        else launch(exact_dense_kernel, {dense_blocks, threads}, x, y, weights_of(node), bias_of(node));
        x = y;
      });
    check(cudaMemcpyAsync(reference_.data(), results, steps * width * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected_output(int output, std::size_t index) const override { return output == 0 ? steps : reference_[index]; }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("step_rate", steps, "steps/s");
    const auto tell = [&](const char* name, double us) {
      if (us > 0) metrics.report(name, us / steps, "us", Metrics::Better::lower);
    };
    tell("capture", host_.capture_us);
    tell("instantiate", host_.instantiate_us);
    tell("update", host_.update_us);
    tell("launch", host_.launch_us);
  }

  void stream_launches(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t step) { timed(host_.launch_us, [&] { queue(launch.stream, step); }); });
  }

  void reinstantiate(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t step) {
      cudaGraphExec_t executable = nullptr;
      const cudaGraph_t graph = captured(launch.stream, step);
      timed(host_.instantiate_us, [&] { check(cudaGraphInstantiate(&executable, graph, 0)); });
      timed(host_.launch_us, [&] { check(cudaGraphLaunch(executable, launch.stream)); });
      check(cudaGraphExecDestroy(executable));  // when it has run
      check(cudaGraphDestroy(graph));
    });
  }

  void build_recaptured(Launch& launch) { build(recaptured_, launch); }
  void exec_update(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t step) {
      const cudaGraph_t graph = captured(launch.stream, step);
      cudaGraphExecUpdateResultInfo result{};
      timed(host_.update_us, [&] { check(cudaGraphExecUpdate(recaptured_.executable(), graph, &result)); });
      check(cudaGraphDestroy(graph));
      replay(launch.stream, recaptured_);
    });
  }

  void build_graph(Launch& launch) { attention_nodes_ = build(graph_, launch); }
  void set_params(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t step) {
      timed(host_.update_us, [&] {
        for (std::size_t i = 0; i < changed_; ++i) {
          const AttentionNode& each = attention_nodes_[i];
          const auto set = [&](const auto& node) {
            check(cudaGraphExecKernelNodeSetParams(graph_.executable(), each.node, &node));
          };
          with_kernel_node(set, attention_kernel, {heads, threads}, each.x, each.y, cache(step, i));
        }
      });
      replay(launch.stream, graph_);
    });
  }

  void build_static(Launch& launch) { build(static_, launch); }
  void static_graph(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t) { replay(launch.stream, static_); });
  }

  void build_looked_up(Launch& launch) {
    load_kernels(launch);
    looked_up_.build([this](cudaGraph_t graph) {
      add_nodes(graph, looked_up_attention_kernel, [this](std::size_t i) -> const KvCache* { return device_caches_ + i; });
    });
  }
  void device_params(Launch& launch) {
    run_steps(launch.stream, [&](std::size_t step) {
      timed(host_.update_us, [&] {
        KvCache* const mine = host_caches_ + step * changed_;  // the copy before this one may be under way
        for (std::size_t i = 0; i < changed_; ++i) mine[i] = cache(step, i);
        check(cudaMemcpyAsync(device_caches_, mine, changed_ * sizeof(KvCache), cudaMemcpyHostToDevice, launch.stream));
      });
      replay(launch.stream, looked_up_);
    });
  }

 private:
  struct AttentionNode {
    Node node;
    const float* x;
    float* y;
  };
  struct HostTimes {
    double capture_us = 0, instantiate_us = 0, update_us = 0, launch_us = 0;
  };

  // Requests of different lengths take turns.
  static std::size_t cache_of(std::size_t step, std::size_t attention) { return (step * 5 + attention * 3) % caches; }
  static int length_of(std::size_t step, std::size_t attention) {
    return 1 + static_cast<int>((step * 37 + attention * 61) % most_keys);
  }
  KvCache cache(std::size_t step, std::size_t attention) const {
    const std::size_t first = cache_of(step, attention) * cache_values;
    return {keys_ + first, values_ + first, length_of(step, attention)};
  }

  // All nodes but the last: body(node, which attention it is, or changed_ when it is none). Attentions lie at equal distances.
  template <class Body>
  void for_each_node(const Body& body) const {
    const std::size_t count = nodes_ - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t before = i * changed_ / count;
      body(i, (i + 1) * changed_ / count > before ? before : changed_);
    }
  }
  float* state(std::size_t node) const { return state_ + node % 2 * width; }

  void queue(cudaStream_t stream, std::size_t step) const {
    for_each_node([&](std::size_t node, std::size_t attention) {
      if (attention < changed_)
        attention_kernel<<<heads, threads, 0, stream>>>(state(node), state(node + 1), cache(step, attention));
      else dense_kernel<<<dense_blocks, threads, 0, stream>>>(state(node), state(node + 1), weights_of(node), bias_of(node));
    });
    record_kernel<<<1, width, 0, stream>>>(state(nodes_ - 1), state_, out_, step_);
    check(cudaGetLastError());
  }
  const float* weights_of(std::size_t node) const { return weights_ + node % matrices * width * width; }
  const float* bias_of(std::size_t node) const { return bias_ + node % matrices * width; }

  template <class Kernel, class CacheOf>
  std::vector<AttentionNode> add_nodes(cudaGraph_t graph, Kernel kernel, const CacheOf& cache_of_node) const {
    std::vector<AttentionNode> attentions;
    Node last = nullptr;
    const auto after = [&] { return last != nullptr ? Nodes{&last, 1} : Nodes{}; };
    for_each_node([&](std::size_t node, std::size_t attention) {
      const float* const x = state(node);
      float* const y = state(node + 1);
      if (attention < changed_) {
        last = add_kernel(graph, after(), kernel, {heads, threads}, x, y, cache_of_node(attention));
        attentions.push_back({last, x, y});
      } else last = add_kernel(graph, after(), dense_kernel, {dense_blocks, threads}, x, y, weights_of(node), bias_of(node));
    });
    add_kernel(graph, after(), record_kernel, {1, width}, state(nodes_ - 1), state_.get(), out_.get(), step_.get());
    return attentions;
  }

  template <class Step>
  void run_steps(cudaStream_t stream, const Step& run_step) {
    host_ = {};
    launch_kernel(stream, begin_kernel, {1, width}, first_state_, state_);
    for (std::size_t step = 0; step < steps; ++step) run_step(step);
  }
  void replay(cudaStream_t stream, const NodeGraph& graph) {
    timed(host_.launch_us, [&] { graph.launch(stream); });
  }
  cudaGraph_t captured(cudaStream_t stream, std::size_t step) {
    cudaGraph_t graph = nullptr;
    timed(host_.capture_us, [&] {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      queue(stream, step);
      check(cudaStreamEndCapture(stream, &graph));
    });
    return graph;
  }
  // A kernel's code is loaded at its first launch: not while a graph is built.
  void load_kernels(Launch& launch) {
    check(cudaMemsetAsync(step_, 0, step_.bytes(), launch.stream));
    queue(launch.stream, 0);
  }
  // The first step's graph.
  std::vector<AttentionNode> build(NodeGraph& graph, Launch& launch) {
    load_kernels(launch);
    std::vector<AttentionNode> attentions;
    graph.build([&](cudaGraph_t nodes) {
      attentions = add_nodes(nodes, attention_kernel, [this](std::size_t attention) { return cache(0, attention); });
    });
    return attentions;
  }

  std::size_t nodes_, changed_;
  Input<float> first_state_, weights_, bias_, keys_, values_;
  InOut<unsigned> step_;
  Output<float> out_;
  Scratch<float> state_;
  Scratch<double> exact_;
  Scratch<KvCache> device_caches_, host_caches_;
  NodeGraph recaptured_, graph_, static_, looked_up_;
  std::vector<AttentionNode> attention_nodes_;
  HostTimes host_;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair graph_update{
    .teaches = "new parameters in an instantiated graph cost a few microseconds, a new graph hundreds",
    .lesson = "set_params",
    .make = make<GraphUpdate>,
    .baseline = {.name = "stream_launches", .run = call<&GraphUpdate::stream_launches>},
    .optimized = variants({{.name = "reinstantiate", .run = call<&GraphUpdate::reinstantiate>, .same_bits_as = "stream_launches"},
                           {.name = "exec_update",
                            .run = call<&GraphUpdate::exec_update>,
                            .prepare = call<&GraphUpdate::build_recaptured>,
                            .same_bits_as = "stream_launches"},
                           {.name = "set_params",
                            .run = call<&GraphUpdate::set_params>,
                            .prepare = call<&GraphUpdate::build_graph>,
                            .same_bits_as = "stream_launches",
                            .gains_over = "reinstantiate"},
                           {.name = "device_params",
                            .run = call<&GraphUpdate::device_params>,
                            .prepare = call<&GraphUpdate::build_looked_up>,
                            .same_bits_as = "stream_launches"}}),
    .controls = variants({{.name = "static_graph",
                           .run = call<&GraphUpdate::static_graph>,
                           .prepare = call<&GraphUpdate::build_static>,
                           .outputs = no_outputs}}),
    .bound = Bound::latency,
    // Each kernel keeps four fifths of the state and with it of the errors before it: a few roundings of sums of 256 products.
    .tolerance = per_output({exact, within(1e-5)}),
    .cache = Cache::hot,
    .start = Start::immediate,
    .sizes = sizes({{.name = "nodes", .full = 200, .least = 2, .most = 8000, .scales = false},
                    {.name = "changed", .full = 12, .least = 1, .most = 8000, .scales = false}}),
    .sweep = cases({{"nodes_20", "nodes=20"},
                    {"nodes_200", "nodes=200"},
                    {"nodes_2000", "nodes=2000"},
                    {"changed_1", "changed=1"},
                    {"changed_12", "changed=12"},
                    {"changed_all", "changed=199"}}),
    .edges = cases({{"two_nodes", "nodes=2,changed=1"}, {"odd", "nodes=21,changed=20"}}),
};

}  // namespace aisp::ch12
