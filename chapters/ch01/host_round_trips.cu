// SPDX-License-Identifier: Apache-2.0
// LARS scales the update of each weight tensor by the norms of its weights and gradients. Where the host computes that factor, it
// waits for the norms and the GPU then waits for the host, 96 times. A kernel that takes the norms from device memory needs
// neither wait; with no host in between, nothing but their stream keeps the tensors in order; and a sequence that the host does
// not steer can be captured once as a graph, which takes the 192 launches off the host too.
#include <aisp/device/reduce.cuh>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace aisp::ch01 {
namespace {

constexpr std::size_t tensor_size = std::size_t{1} << 20;
constexpr float learning_rate = 8, trust = 1e-3f, weight_decay = 5e-4f;
constexpr int threads = 256, vectors = 4;  // float4 of weights, and as many of gradients, in each thread
constexpr int blocks = tensor_size / 4 / vectors / threads;
static_assert(std::size_t{blocks} * threads * vectors * 4 == tensor_size);
static_assert(blocks == threads, "one block sums the partial sums, one for each of its threads");
constexpr std::size_t streams = 3;

struct Norms {
  float weights, gradients;
};

__host__ __device__ float step_of(Norms norms) {
  const bool defined = norms.weights > 0 && norms.gradients > 0;
  const float ratio = defined ? trust * norms.weights / (norms.gradients + weight_decay * norms.weights) : 1;
  return learning_rate * ratio;
}

// A thread's part of a tensor: eight loads that do not wait for one another.
struct Part {
  float4 weights[vectors], gradients[vectors];
};

__device__ int part_index(int vector) { return (blockIdx.x * vectors + vector) * threads + threadIdx.x; }

__device__ Part load(const float4* weights, const float4* gradients) {
  Part part;
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    part.weights[v] = weights[part_index(v)];
    part.gradients[v] = gradients[part_index(v)];
  }
  return part;
}

__device__ float square(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }

// The sums of squares of what this block has loaded.
__global__ __launch_bounds__(threads) void partial_sums_kernel(const float4* weights, const float4* gradients, float2* partials) {
  __shared__ float shared[device::largest_block_in_warps];
  const Part part = load(weights, gradients);
  float2 sums{};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    sums.x += square(part.weights[v]);
    sums.y += square(part.gradients[v]);
  }
  sums.x = device::block_sum(sums.x, shared);
  sums.y = device::block_sum(sums.y, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sums;
}

// Every thread gets the norms, from one partial sum each.
__device__ Norms add_up(const float2* partials, float* shared) {
  const float2 partial = partials[threadIdx.x];
  const float weights = device::block_sum(partial.x, shared);
  const float gradients = device::block_sum(partial.y, shared);
  return {sqrtf(weights), sqrtf(gradients)};
}

__global__ __launch_bounds__(threads) void norms_kernel(const float2* partials, Norms* norms) {
  __shared__ float shared[device::largest_block_in_warps];
  const Norms result = add_up(partials, shared);
  if (threadIdx.x == 0) *norms = result;
}

__device__ void update(float4* weights, const Part& part, float step) {
  const auto updated = [step](float weight, float gradient) { return weight - step * (gradient + weight_decay * weight); };
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const float4 w = part.weights[v], g = part.gradients[v];
    weights[part_index(v)] = make_float4(updated(w.x, g.x), updated(w.y, g.y), updated(w.z, g.z), updated(w.w, g.w));
  }
}

__global__ __launch_bounds__(threads) void update_kernel(float4* weights, const float4* gradients, float step) {
  update(weights, load(weights, gradients), step);
}

// Every block adds up the norms for itself: that is 2 KiB from L2 while its part of the tensor is on its way, and one launch
// less.
__global__ __launch_bounds__(threads) void update_from_sums_kernel(float4* weights, const float4* gradients,
                                                                   const float2* partials) {
  __shared__ float shared[device::largest_block_in_warps];
  const Part part = load(weights, gradients);
  update(weights, part, step_of(add_up(partials, shared)));
}

class HostRoundTrips final : public Workload {
 public:
  explicit HostRoundTrips(Setup& setup)
      : tensors_{setup.scaled(96)},
        gradients_{setup.input<float>(tensors_ * tensor_size, uniform(-0.01f, 0.01f), {.name = "gradients"})},
        weights_{setup.inout<float>(tensors_ * tensor_size, uniform(-1, 1), {.name = "weights"})},
        partials_{setup.scratch<float2>(streams * blocks, {.name = "partial sums"})},
        norms_{setup.scratch<Norms>(1, {.name = "norms"})},
        team_{setup.threads(std::min(setup.cpus(), 16), false)},
        steps_(tensors_),
        forked_{setup.event()} {
    for (std::size_t s = 1; s < streams; ++s) {
      further_[s - 1] = setup.stream();
      joined_[s - 1] = setup.event();
    }
  }

  Cost cost() const override {
    const double count = static_cast<double>(weights_.size());
    return {.flops = 8 * count, .bytes = 12 * count};  // the second reads of weights and gradients may hit L2
  }

  void compute_reference(Launch&) override {
    team_.run([this](int worker) {
      for (std::size_t t = static_cast<std::size_t>(worker); t < tensors_; t += static_cast<std::size_t>(team_.size())) {
        double weights = 0, gradients = 0;
        for (std::size_t i = t * tensor_size; i < (t + 1) * tensor_size; ++i) {
          const double weight = weights_.initial(i), gradient = gradients_.host(i);
          weights += weight * weight;
          gradients += gradient * gradient;
        }
        steps_[t] = static_cast<double>(learning_rate) * static_cast<double>(trust) * std::sqrt(weights) /
                    (std::sqrt(gradients) + static_cast<double>(weight_decay) * std::sqrt(weights));
      }
    });
  }
  double expected(std::size_t index) const override {
    const double weight = weights_.initial(index);
    return weight - steps_[index / tensor_size] * (gradients_.host(index) + static_cast<double>(weight_decay) * weight);
  }

  void host_scalars(Launch& launch) {
    for (std::size_t t = 0; t < tensors_; ++t) {
      add_squares(t, partials_, launch.stream);
      norms_kernel<<<1, threads, 0, launch.stream>>>(partials_, norms_);
      check(cudaGetLastError());
      Norms norms;  // what cudaMemcpy does, on the stream that is timed
      check(cudaMemcpyAsync(&norms, norms_, sizeof norms, cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
      update_kernel<<<blocks, threads, 0, launch.stream>>>(weights(t), gradients(t), step_of(norms));
      check(cudaGetLastError());
    }
  }

  void device_scalars(Launch& launch) {
    for (std::size_t t = 0; t < tensors_; ++t) update_on_device(t, partials_, launch.stream);
  }

  // The tensors do not depend on one another: while one kernel starts up or drains, those of two other tensors keep memory busy.
  void device_scalars_streams(Launch& launch) { queue_on_streams(launch.stream); }

  void capture(Launch& launch) {
    queue_on_streams(launch.stream);  // code is loaded at its first launch: not while a capture is under way
    graph_.capture(launch.stream, [&](cudaStream_t stream) { queue_on_streams(stream); });
  }
  void captured_graph(Launch& launch) { graph_.launch(launch.stream); }

 private:
  void queue_on_streams(cudaStream_t first) {
    check(cudaEventRecord(forked_, first));
    for (cudaStream_t stream : further_) check(cudaStreamWaitEvent(stream, forked_));
    for (std::size_t t = 0; t < tensors_; ++t) {
      const std::size_t s = t % streams;
      update_on_device(t, partials_ + s * blocks, s == 0 ? first : further_[s - 1]);
    }
    for (std::size_t s = 0; s < further_.size(); ++s) {
      check(cudaEventRecord(joined_[s], further_[s]));
      check(cudaStreamWaitEvent(first, joined_[s]));
    }
  }
  float4* weights(std::size_t tensor) const { return reinterpret_cast<float4*>(weights_ + tensor * tensor_size); }
  const float4* gradients(std::size_t tensor) const { return reinterpret_cast<const float4*>(gradients_ + tensor * tensor_size); }
  void add_squares(std::size_t tensor, float2* partials, cudaStream_t stream) const {
    partial_sums_kernel<<<blocks, threads, 0, stream>>>(weights(tensor), gradients(tensor), partials);
    check(cudaGetLastError());
  }
  void update_on_device(std::size_t tensor, float2* partials, cudaStream_t stream) const {
    add_squares(tensor, partials, stream);
    update_from_sums_kernel<<<blocks, threads, 0, stream>>>(weights(tensor), gradients(tensor), partials);
    check(cudaGetLastError());
  }

  std::size_t tensors_;
  Input<float> gradients_;
  InOut<float> weights_;
  Scratch<float2> partials_;
  Scratch<Norms> norms_;
  ThreadTeam& team_;
  std::vector<double> steps_;  // of the reference
  cudaEvent_t forked_;
  std::array<cudaStream_t, streams - 1> further_{};
  std::array<cudaEvent_t, streams - 1> joined_{};
  Graph graph_;
};

}  // namespace

extern constinit const Pair host_round_trips{
    .teaches = "a scalar that only steers the next kernel need not visit the host; reading it back empties the pipeline",
    .lesson = "device_scalars",
    .make = make<HostRoundTrips>,
    .baseline = {.name = "host_scalars", .run = call<&HostRoundTrips::host_scalars>},
    .optimized = variants({{.name = "device_scalars", .run = call<&HostRoundTrips::device_scalars>},
                           {.name = "device_scalars_streams",
                            .run = call<&HostRoundTrips::device_scalars_streams>,
                            .same_bits_as = "device_scalars"},
                           {.name = "captured_graph",
                            .run = call<&HostRoundTrips::captured_graph>,
                            .prepare = call<&HostRoundTrips::capture>,
                            .same_bits_as = "device_scalars"}}),
    .bound = Bound::latency,
    // Weights change by less than 1 %, so rounding the new value (2.4e-8) is what remains; another tensor's norms would show.
    .tolerance = within(2e-7),
    .start = Start::immediate,  // the baseline waits for the GPU
};

}  // namespace aisp::ch01
