// SPDX-License-Identifier: Apache-2.0
// An LSTM layer (hidden 1024, batch 32, 512 steps): each step multiplies 64 KB of state by the same 8.4 MB of weights. A GEMM and
// a gate kernel per step launch 1024 times and fetch the weights from L2 each time. 128 resident blocks keep 64 KB of weights
// each in registers, so that a step costs what cannot be avoided: everybody tells everybody the new state.
#include <aisp/device/cluster.cuh>
#include <aisp/device/fence.cuh>
#include <aisp/device/mbarrier.cuh>
#include <aisp/device/tma.cuh>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <cooperative_groups.h>

#include <vector>

#include "lstm_reference.hpp"
#include "lstm_step.cuh"

namespace aisp::ch10 {
namespace {

using namespace lstm;

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

__device__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory"); }  // all but the ninth warp

// The state of step t lies in exchange[t % 2]: who writes the state after next has seen everybody's next one, and with it that
// everybody is done with this one.
__global__ __launch_bounds__(threads, 1) void grid_sync_kernel(const bf16* inputs, const bf16* weights, const bf16* hidden_state,
                                                               const float* cells, uint4* exchange, bf16* out, int steps) {
  __shared__ float4 partial[warps * threads];
  const auto grid = cooperative_groups::this_grid();
  Step step{weights, cells};
  uint4 chunk = step.gather_chunk(hidden_state[step.state_place() + step.unit]);
  if (step.unit == 0) __stcg(exchange + step.chunk_place(), chunk);
  for (int t = 0; t < steps; ++t) {
    step.fetch_inputs(inputs + static_cast<std::size_t>(t) * batch * rows);
    grid.sync();
    uint4 chunks[16];
    const uint4* from = exchange + t % 2 * state_chunks + step.warp * slice_chunks + step.lane;
#pragma unroll
    for (int i = 0; i < 16; ++i) chunks[i] = __ldcg(from + i * 32);
    step.multiply(chunks, partial);
    __syncthreads();
    chunk = step.gather_chunk(__float2bfloat16_rn(step.finish(partial)));
    if (step.unit == 0) {
      __stcg(exchange + (t + 1) % 2 * state_chunks + step.chunk_place(), chunk);
      *reinterpret_cast<uint4*>(out + static_cast<std::size_t>(t) * state + step.state_place()) = chunk;
    }
  }
}

struct ClusterMemory {
  uint4 state[2][warps][slice_chunks];
  float4 partial[warps * threads];
  std::uint64_t arrived[2][warps];
};

// A ninth warp fetches the state. Each block of the cluster waits for the flags of its share of the slices only, and one TMA copy
// brings a slice to all of them: L2 is read once per cluster.
__global__ __launch_bounds__(threads + 32, 1) void cluster_kernel(const bf16* inputs, const bf16* weights,
                                                                  const bf16* hidden_state, const float* cells, uint4* exchange,
                                                                  unsigned* flags, bf16* out, int steps) {
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

  if (threadIdx.x >= threads) {
    const int lane = static_cast<int>(threadIdx.x) % 32, size = static_cast<int>(device::cluster_size());
    const auto everybody = static_cast<std::uint16_t>((1u << size) - 1);
    for (int t = 0; t < steps; ++t)
      for (int s = static_cast<int>(device::cluster_rank()); s < warps; s += size) {
        const unsigned* flag = flags + s * blocks_per_slice + lane % blocks_per_slice;
        while (device::load_acquire_gpu(flag) < static_cast<unsigned>(t + 1)) {
        }
        __syncwarp();
        device::fence_proxy_async();
        if (lane == 0)
          device::bulk_load_multicast(shared.state[t % 2][s], exchange + t % 2 * state_chunks + s * slice_chunks, slice_bytes,
                                      &shared.arrived[t % 2][s], everybody);
      }
  } else {
    Step step{weights, cells};
    const auto publish = [&](uint4 chunk, int t) {  // the state that step t starts from
      if (step.unit == 0) __stcg(exchange + t % 2 * state_chunks + step.chunk_place(), chunk);
      meet_workers();
      if (threadIdx.x == 0) device::store_release_gpu(flags + blockIdx.x, static_cast<unsigned>(t + 1));
    };
    uint4 chunk = step.gather_chunk(hidden_state[step.state_place() + step.unit]);
    publish(chunk, 0);
    for (int t = 0; t < steps; ++t) {
      step.fetch_inputs(inputs + static_cast<std::size_t>(t) * batch * rows);
      std::uint64_t* arrived = &shared.arrived[t % 2][step.warp];
      device::barrier_wait_cluster(arrived, t / 2 % 2);
      uint4 chunks[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) chunks[i] = shared.state[t % 2][step.warp][i * 32 + step.lane];
      step.multiply(chunks, shared.partial);
      if (step.lane == 0) device::barrier_arrive_expect(arrived, slice_bytes);  // for the state after next
      meet_workers();
      chunk = step.gather_chunk(__float2bfloat16_rn(step.finish(shared.partial)));
      if (t + 1 < steps) publish(chunk, t + 1);
      if (step.unit == 0) *reinterpret_cast<uint4*>(out + static_cast<std::size_t>(t) * state + step.state_place()) = chunk;
    }
  }
  device::cluster_sync();  // nobody leaves while copies for the others may still arrive
}

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
        running_cells_{setup.scratch<float>(state)},
        exchange_{setup.scratch<bf16>(2 * state)},
        flags_{setup.scratch<unsigned>(blocks)},
        cpus_{setup.cpus()} {
    int device = 0, processors = 0, clusters = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    check(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device));
    if (processors < blocks) throw Unsupported("fewer than 128 SMs, one for each block's weights");
    if (clusters != 0) choose_cluster();
  }

  Cost cost() const override {
    const double steps = static_cast<double>(steps_);
    return {.flops = 2.0 * steps * batch * rows * hidden,
            .math = Math::bf16,
            .bytes = static_cast<double>(inputs_.bytes() + weights_.bytes() + out_.bytes())};
  }

  void compute_reference(Launch&) override {
    reference_ = Reference{hidden, inputs_, weights_, hidden_state_, cells_}.states(cpus_);
  }
  double expected(std::size_t i) const override { return reference_[i]; }

  void gemm_per_step(Launch& launch) {
    for (std::size_t t = 0; t < steps_; ++t) {
      const bf16* previous = t == 0 ? hidden_state_.get() : out_ + (t - 1) * state;
      cublas_.gemm(launch.stream, batch, rows, hidden, previous, weights_, recurrent_, CUDA_R_16BF);
      gate_kernel<<<state / threads, threads, 0, launch.stream>>>(
          inputs_ + t * batch * rows, recurrent_, t == 0 ? cells_.get() : running_cells_.get(), running_cells_, out_ + t * state);
    }
    check(cudaGetLastError());
  }
  void persistent_grid_sync(Launch& launch) {
    const cudaLaunchConfig_t config{
        .gridDim = blocks, .blockDim = threads, .stream = launch.stream, .attrs = attributes_, .numAttrs = 1};
    check(cudaLaunchKernelEx(&config, grid_sync_kernel, inputs_.get(), weights_.get(), hidden_state_.get(), cells_.get(),
                             exchange(), out_.get(), static_cast<int>(steps_)));
  }
  void persistent_cluster(Launch& launch) {
    check(cudaMemsetAsync(flags_, 0, flags_.bytes(), launch.stream));
    const cudaLaunchConfig_t config = cluster_launch(launch.stream);
    check(cudaLaunchKernelEx(&config, cluster_kernel, inputs_.get(), weights_.get(), hidden_state_.get(), cells_.get(),
                             exchange(), flags_.get(), out_.get(), static_cast<int>(steps_)));
  }

 private:
  // The largest cluster of which enough fit at once to hold all blocks.
  void choose_cluster() {
    check(cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ClusterMemory)));
    for (const unsigned size : {8u, 4u, 2u, 1u}) {
      attributes_[1].val.clusterDim = {size, 1, 1};
      const cudaLaunchConfig_t config = cluster_launch(nullptr);
      int resident = 0;
      check(cudaOccupancyMaxActiveClusters(&resident, cluster_kernel, &config));
      if (resident * static_cast<int>(size) >= blocks) return;
    }
    throw Unsupported("no room for 128 resident blocks with 160 KiB of shared memory each");
  }

  uint4* exchange() const { return reinterpret_cast<uint4*>(exchange_.get()); }
  cudaLaunchConfig_t cluster_launch(cudaStream_t stream) {
    return {.gridDim = blocks,
            .blockDim = threads + 32,
            .dynamicSmemBytes = sizeof(ClusterMemory),
            .stream = stream,
            .attrs = attributes_,
            .numAttrs = 2};
  }

  std::size_t steps_;
  Input<bf16> inputs_, weights_, hidden_state_;
  Input<float> cells_;
  Output<bf16> out_;
  Scratch<bf16> recurrent_;
  Scratch<float> running_cells_;
  Scratch<bf16> exchange_;
  Scratch<unsigned> flags_;
  int cpus_;
  Cublas cublas_;
  cudaLaunchAttribute attributes_[2]{{.id = cudaLaunchAttributeCooperative, .val = {.cooperative = 1}},
                                     {.id = cudaLaunchAttributeClusterDimension, .val = {.clusterDim = {8, 1, 1}}}};
  std::vector<double> reference_;
};

}  // namespace

extern constinit const Pair cooperative_persistent{
    .teaches =
        "when the same weights serve every step, keep them on chip and replace launches by a barrier between resident blocks",
    .make = make<CooperativePersistent>,
    .baseline = {.name = "gemm_per_step", .run = call<&CooperativePersistent::gemm_per_step>},
    .optimized = variants(
        {{.name = "persistent_grid_sync", .run = call<&CooperativePersistent::persistent_grid_sync>},
         {.name = "persistent_cluster", .run = call<&CooperativePersistent::persistent_cluster>, .needs = {.min_sm = 90}}}),
    .bound = Bound::latency,
    // The state is rounded to bf16 (1.6e-3) on its way from step to step, and the gates forget it within a few steps.
    .tolerance = within(1e-2),
    .needs = {.libraries = {Library::cublas}, .attributes = {cudaDevAttrCooperativeLaunch}},
    .start = Start::immediate,
    .verification = Verification::small_shape,
};

}  // namespace aisp::ch10
