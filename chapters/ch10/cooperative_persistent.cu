// SPDX-License-Identifier: Apache-2.0
// An LSTM layer (hidden 1024, batch 32, 512 steps): each step multiplies 64 KB of state by the same 8.4 MB of weights. A GEMM and
// a gate kernel per step launch 1024 times and fetch the weights from L2 each time; a graph takes out the launches alone. 128
// resident blocks keep 64 KB of weights each in registers, so that what is left of a step is its product, and that everybody
// tells everybody the new state: by a barrier of the whole grid, or each warp waits only for what it needs. No library stands
// beside it: cuDNN's LSTM multiplies inputs by weights, too, or adds one input to all four gates of a unit (CUDNN_SKIP_INPUT),
// where each gate has its own here.
#include <cuda_bf16.h>
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <cooperative_groups.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "lstm_step.cuh"

namespace aisp::ch10 {
namespace {

using namespace lstm;

// The least a step takes on an H200, one after the other: what one SM stores is seen by another (0.33 us, half of a round trip
// between two that poll), and the tensor cores multiply 268 MFLOP at the rate of mma.sync, three fifths of wgmma's (0.55 us). How
// the state gets from L2 to 128 SMs is left out: a cluster can share it.
constexpr double step_s = (0.33 + 0.55) * 1e-6;

// A block's chunks of the state of step t, to the others; and a warp's slice of it, from them.
__device__ __forceinline__ void store_state(uint4* exchange, const Step& step, uint4 chunk, int t) {
  if (step.unit == 0) __stcg(exchange + t % 2 * state_chunks + step.chunk_place(), chunk);
}
__device__ __forceinline__ void load_slice(const uint4* exchange, const Step& step, uint4 (&chunks)[16], int t) {
  const uint4* from = exchange + t % 2 * state_chunks + step.slice_place();
#pragma unroll
  for (int i = 0; i < 16; ++i) chunks[i] = __ldcg(from + i * 32);
}

// A warp waits for the 16 blocks that compute its slice, neither for the grid nor for the other warps of its block. One counter
// per slice, in a line of its own; warps that poll 16 flags instead, one per block, get in each other's way.
struct Arrivals {
  unsigned* counters;
  static constexpr int stride = 32;

  __device__ void publish() const {
    __syncthreads();
    if (threadIdx.x == 0) device::add_release_gpu(counters + blockIdx.x / blocks_per_slice * stride, 1);
  }
  __device__ void wait(int warp, int t) const {
    while (device::load_acquire_gpu(counters + warp * stride) < static_cast<unsigned>(t + 1) * blocks_per_slice) {
    }
    __syncwarp();
  }
};

// All steps of a block. What differs is how the state of step t travels: publish() gives the block's chunk of it to the others,
// receive() waits for everybody's and returns this warp's slice. It lies in exchange[t % 2]: whoever writes the state after next
// has seen everybody's next one, and with it that everybody is done with this one.
template <class Exchange>
__device__ void run_steps(Exchange exchange, float4* partial, const Layer& layer) {
  Step step{layer.weights, layer.cells};
  const int place = step.state_place();
  uint4 chunk = step.gather_chunk(layer.hidden_state[place + step.unit]);
  exchange.publish(step, chunk, 0);
  for (int t = 0; t < layer.steps; ++t) {
    step.fetch_inputs(layer.inputs + static_cast<std::size_t>(t) * batch * rows);
    uint4 chunks[16];
    exchange.receive(step, chunks, t);
    step.multiply(chunks, partial);
    __syncthreads();
    chunk = step.gather_chunk(__float2bfloat16_rn(step.finish(partial)));
    if (t + 1 < layer.steps) exchange.publish(step, chunk, t + 1);
    if (step.unit == 0) *reinterpret_cast<uint4*>(layer.out + static_cast<std::size_t>(t) * state + place) = chunk;
  }
}

// The second kernel of a step without resident blocks: a thread per hidden unit of a sequence.
__global__ __launch_bounds__(threads) void gate_kernel(const bf16* inputs, const bf16* recurrent, const float* old_cells,
                                                       float* cells, bf16* out) {
  const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  const int first = i / hidden * rows + i % hidden;
  const auto gate = [&](int g) {
    return __bfloat162float(inputs[first + g * hidden]) + __bfloat162float(recurrent[first + g * hidden]);
  };
  float cell = old_cells[i];
  out[i] = __float2bfloat16_rn(update_cell(make_float4(gate(0), gate(1), gate(2), gate(3)), cell));
  cells[i] = cell;
}

struct GridSync {
  uint4* exchange;

  __device__ void publish(const Step& step, uint4 chunk, int t) const { store_state(exchange, step, chunk, t); }
  __device__ void receive(const Step& step, uint4 (&chunks)[16], int t) const {
    cooperative_groups::this_grid().sync();
    load_slice(exchange, step, chunks, t);
  }
};

__global__ __launch_bounds__(threads, 1) void grid_sync_kernel(Layer layer, uint4* exchange) {
  __shared__ float4 partial[warps * threads];
  run_steps(GridSync{exchange}, partial, layer);
}

struct SliceSync {
  uint4* exchange;
  Arrivals arrivals;

  __device__ void publish(const Step& step, uint4 chunk, int t) const {
    store_state(exchange, step, chunk, t);
    arrivals.publish();
  }
  __device__ void receive(const Step& step, uint4 (&chunks)[16], int t) const {
    arrivals.wait(step.warp, t);
    load_slice(exchange, step, chunks, t);
  }
};

__global__ __launch_bounds__(threads, 1) void slice_sync_kernel(Layer layer, uint4* exchange, Arrivals arrivals) {
  __shared__ float4 partial[warps * threads];
  run_steps(SliceSync{exchange, arrivals}, partial, layer);
}

struct ClusterMemory {
  uint4 state[2][warps][slice_chunks];
  float4 partial[warps * threads];
  std::uint64_t arrived[2][warps];
};

// The blocks of a cluster share the waiting: the one whose turn it is has a TMA copy bring the slice to all of them, so that L2
// is read once per cluster.
struct Multicast {
  uint4* exchange;
  Arrivals arrivals;
  ClusterMemory& shared;

  __device__ void publish(const Step& step, uint4 chunk, int t) const {
    store_state(exchange, step, chunk, t);
    arrivals.publish();
  }
  __device__ void receive(const Step& step, uint4 (&chunks)[16], int t) const {
    std::uint64_t* arrived = &shared.arrived[t % 2][step.warp];
    uint4* slice_of_state = shared.state[t % 2][step.warp];
    const unsigned size = device::cluster_size();
    if (static_cast<unsigned>(step.warp) % size == device::cluster_rank()) {
      arrivals.wait(step.warp, t);
      device::fence_proxy_async();
      if (step.lane == 0)
        device::bulk_load_multicast(slice_of_state, exchange + t % 2 * state_chunks + step.warp * slice_chunks, slice_bytes,
                                    arrived, static_cast<std::uint16_t>((1u << size) - 1));
    }
    device::barrier_wait_cluster(arrived, t / 2 % 2);
#pragma unroll
    for (int i = 0; i < 16; ++i) chunks[i] = slice_of_state[i * 32 + step.lane];
    if (step.lane == 0) device::barrier_arrive_expect(arrived, slice_bytes);  // for the state after next
  }
};

__global__ __launch_bounds__(threads, 1) void cluster_kernel(Layer layer, uint4* exchange, Arrivals arrivals) {
  extern __shared__ __align__(128) unsigned char memory[];
  ClusterMemory& shared = *reinterpret_cast<ClusterMemory*>(memory);
  if (threadIdx.x == 0) {
    for (auto& barriers : shared.arrived)
      for (auto& barrier : barriers) device::barrier_init(&barrier, 1);
    device::fence_barrier_init();
    for (auto& barriers : shared.arrived)
      for (auto& barrier : barriers) device::barrier_arrive_expect(&barrier, slice_bytes);
  }
  device::cluster_sync();
  run_steps(Multicast{exchange, arrivals, shared}, shared.partial, layer);
  device::cluster_sync();  // nobody leaves while copies for the others may still arrive
}

// The hidden states in float64: [steps][sequences][hidden], from input gates [steps][sequences][4][hidden] and weights
// [hidden][4][hidden]; gates in the order input, forget, candidate, output.
class Reference {
 public:
  Reference(std::size_t hidden, const Input<bf16>& inputs, const Input<bf16>& weights, const Input<bf16>& first_state,
            const Input<float>& first_cells)
      : hidden_{hidden},
        state_{first_state.size()},
        steps_{inputs.size() / (4 * state_)},
        inputs_{inputs},
        first_state_{first_state},
        first_cells_{first_cells},
        weights_(weights.size()) {
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<float>(weights.host(i));
  }

  // Sequences do not depend on one another: the threads share them out.
  std::vector<double> states(int threads) const {
    std::vector<double> result(steps_ * state_);
    std::vector<std::thread> workers;
    for (int w = 0; w < threads; ++w)
      workers.emplace_back([this, w, threads, &result] {
        for (auto i = static_cast<std::size_t>(w); i < state_ / hidden_; i += static_cast<std::size_t>(threads)) run(i, result);
      });
    for (std::thread& worker : workers) worker.join();
    return result;
  }

 private:
  void run(std::size_t sequence, std::vector<double>& result) const {
    const std::size_t rows = 4 * hidden_, first = sequence * hidden_;
    std::vector<double> h(hidden_), c(hidden_), gate(rows);
    for (std::size_t u = 0; u < hidden_; ++u) {
      h[u] = first_state_.host(first + u);
      c[u] = first_cells_.host(first + u);
    }
    for (std::size_t t = 0; t < steps_; ++t) {
      for (std::size_t r = 0; r < rows; ++r) gate[r] = inputs_.host(4 * (t * state_ + first) + r);
      for (std::size_t k = 0; k < hidden_; ++k)
        for (std::size_t r = 0; r < rows; ++r) gate[r] += h[k] * double{weights_[k * rows + r]};
      for (std::size_t u = 0; u < hidden_; ++u) {
        c[u] = sigmoid(gate[hidden_ + u]) * c[u] + sigmoid(gate[u]) * std::tanh(gate[2 * hidden_ + u]);
        h[u] = sigmoid(gate[3 * hidden_ + u]) * std::tanh(c[u]);
        result[t * state_ + first + u] = h[u];
      }
    }
  }
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

  std::size_t hidden_, state_, steps_;
  const Input<bf16>&inputs_, &first_state_;
  const Input<float>& first_cells_;
  std::vector<float> weights_;
};

class CooperativePersistent final : public Workload {
 public:
  explicit CooperativePersistent(Setup& setup)
      : steps_{setup.shape(setup.scaled(512), 24)},
        inputs_{setup.input<bf16>(steps_ * batch * rows, normal(0, 1), {.name = "input gates"})},
        weights_{setup.input<bf16>(std::size_t{hidden} * rows, uniform(-1.0f / 32, 1.0f / 32), {.name = "recurrent weights"})},
        hidden_state_{setup.input<bf16>(state, uniform(-1, 1), {.name = "first hidden state"})},
        cells_{setup.input<float>(state, uniform(-1, 1), {.name = "first cells"})},
        out_{setup.output<bf16>(steps_ * state, {.name = "hidden states"})},
        recurrent_{setup.scratch<bf16>(std::size_t{batch} * rows)},
        exchange_{setup.scratch<bf16>(2 * state)},
        running_cells_{setup.scratch<float>(state)},
        arrivals_{setup.scratch<unsigned>(warps * Arrivals::stride)},
        cpus_{setup.cpus()},
        cublas_{setup} {
    if (multiprocessors() < blocks)
      throw Unsupported("needs 128 SMs, one for each block's weights, this GPU has " + std::to_string(multiprocessors()));
  }

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(steps_) * batch * rows * hidden,
            .math = Math::bf16,
            .bytes = static_cast<double>(inputs_.bytes() + weights_.bytes() + out_.bytes()),
            .seconds = static_cast<double>(steps_) * step_s};
  }

  void compute_reference(Launch&) override {
    reference_ = Reference{hidden, inputs_, weights_, hidden_state_, cells_}.states(cpus_);
  }
  double expected(std::size_t i) const override { return reference_[i]; }

  void gemm_per_step(Launch& launch) {
    for (std::size_t t = 0; t < steps_; ++t) {
      const bf16* previous = t == 0 ? hidden_state_.get() : out_ + (t - 1) * state;
      cublas_->gemm(launch.stream, batch, rows, hidden, previous, weights_, recurrent_, CUDA_R_16BF);
      launch(gate_kernel, {state / threads, threads}, inputs_ + t * batch * rows, recurrent_,
             t == 0 ? cells_.get() : running_cells_.get(), running_cells_, out_ + t * state);
    }
  }
  // A kernel's code is loaded at its first launch: not while a capture is under way.
  void capture_steps(Launch& launch) {
    gemm_per_step(launch);
    graph_.capture(launch.stream, [&](cudaStream_t) { gemm_per_step(launch); });
  }
  void graph_per_step(Launch& launch) { graph_.launch(launch.stream); }
  void persistent_grid_sync(Launch& launch) {
    launch(grid_sync_kernel, {.blocks = blocks, .threads = threads, .cooperative = true}, layer(), exchange());
  }
  void persistent_slice_sync(Launch& launch) {
    check(cudaMemsetAsync(arrivals_, 0, arrivals_.bytes(), launch.stream));
    launch(slice_sync_kernel, {.blocks = blocks, .threads = threads, .cooperative = true}, layer(), exchange(),
           Arrivals{arrivals_});
  }
  void persistent_cluster(Launch& launch) {
    check(cudaMemsetAsync(arrivals_, 0, arrivals_.bytes(), launch.stream));
    const Grid grid{blocks, threads, sizeof(ClusterMemory), cluster_, true};
    launch(cluster_kernel, grid, layer(), exchange(), Arrivals{arrivals_});
  }
  // The largest cluster of which enough fit at once to hold all blocks.
  void choose_cluster(Launch&) {
    int most = 0;
    for (const unsigned size : {8u, 4u, 2u, 1u}) {
      cluster_ = size;
      const int resident =
          resident_clusters(cluster_kernel, {blocks, threads, sizeof(ClusterMemory), size, true}) * static_cast<int>(size);
      if (resident >= blocks) return;
      most = std::max(most, resident);
    }
    throw Unsupported("needs 128 resident blocks with 160 KiB of shared memory each, this GPU holds " + std::to_string(most));
  }

 private:
  uint4* exchange() const { return reinterpret_cast<uint4*>(exchange_.get()); }
  Layer layer() const { return {inputs_, weights_, hidden_state_, cells_, out_, static_cast<int>(steps_)}; }

  std::size_t steps_;
  Input<bf16> inputs_, weights_, hidden_state_;
  Input<float> cells_;
  Output<bf16> out_;
  Scratch<bf16> recurrent_, exchange_;
  Scratch<float> running_cells_;
  Scratch<unsigned> arrivals_;
  int cpus_;
  Opened<Cublas> cublas_;
  Graph graph_;
  unsigned cluster_ = 8;
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair cooperative_persistent{
    .teaches =
        "when the same weights serve every step, keep them on chip and replace launches by a barrier between resident blocks",
    .lesson = "persistent_grid_sync",
    .make = make<CooperativePersistent>,
    .baseline = {.name = "gemm_per_step", .run = call<&CooperativePersistent::gemm_per_step>},
    .optimized = variants({{.name = "graph_per_step",
                            .run = call<&CooperativePersistent::graph_per_step>,
                            .prepare = call<&CooperativePersistent::capture_steps>},
                           {.name = "persistent_grid_sync", .run = call<&CooperativePersistent::persistent_grid_sync>},
                           {.name = "persistent_slice_sync", .run = call<&CooperativePersistent::persistent_slice_sync>},
                           {.name = "persistent_cluster",
                            .run = call<&CooperativePersistent::persistent_cluster>,
                            .prepare = call<&CooperativePersistent::choose_cluster>,
                            .needs = {.min_sm = 90, .max_sm = 110},
                            .gains_over = "persistent_grid_sync"}}),
    .bound = Bound::latency,
    // The state is rounded to bf16 (1.6e-3) on its way from step to step, and the gates forget it within a few steps.
    .tolerance = within(3e-3),
    .needs = {.libraries = {Library::cublas}, .attributes = {cudaDevAttrCooperativeLaunch}},
    .start = Start::immediate,
    .verification = Verification::small_shape,
};

}  // namespace aisp::ch10
