// SPDX-License-Identifier: Apache-2.0
// Data-parallel training adds up the gradients of all GPUs. Collected on one GPU and sent back, they pass that GPU's link twice,
// one way after the other, while all others idle. An all-reduce cuts them into as many slices as there are GPUs: each adds up
// one slice, and hands its sum to all, so every link works in both directions from the beginning to the end.
#include <aisp/device/vector.cuh>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <string>

#include "equal_copies.cuh"
#include "gpus.hpp"

namespace aisp::ch04 {
namespace {

using Floats = device::Vector16<float>;
constexpr int threads = 256, vectors_per_thread = 4, vector_floats = Floats::size();
constexpr std::size_t block_floats = std::size_t{threads} * vectors_per_thread * vector_floats;
constexpr std::size_t chunk_floats = (std::size_t{16} << 20) / sizeof(float);

// Adds up what all GPUs hold of the block's part, in their order, and stores the sum to `targets` places. Loads over NVLink take
// long, so each thread has four under way.
__global__ __launch_bounds__(threads) void sum_kernel(const __grid_constant__ OnGpus<const float> from, int gpus,
                                                      const __grid_constant__ OnGpus<float> to, int targets,
                                                      std::size_t first_float) {
  const std::size_t first = (first_float + std::size_t{blockIdx.x} * block_floats) / vector_floats + threadIdx.x;
  Floats sum[vectors_per_thread]{};
  for (int source = 0; source < gpus; ++source) {
    Floats loaded[vectors_per_thread];
    const auto* const values = reinterpret_cast<const Floats*>(from.at[source]) + first;
#pragma unroll
    for (int k = 0; k < vectors_per_thread; ++k) loaded[k] = device::load_once(values + k * threads);
#pragma unroll
    for (int k = 0; k < vectors_per_thread; ++k)
#pragma unroll
      for (int lane = 0; lane < vector_floats; ++lane) sum[k][lane] += loaded[k][lane];
  }
  for (int target = 0; target < targets; ++target) {
    auto* const values = reinterpret_cast<Floats*>(to.at[target]) + first;
#pragma unroll
    for (int k = 0; k < vectors_per_thread; ++k) device::store_streaming(values + k * threads, sum[k]);
  }
}

class Dataparallel final : public Workload {
 public:
  explicit Dataparallel(Setup& setup)
      : gpus_{setup},
        count_{setup.scaled(std::size_t{1} << 27, block_floats * static_cast<std::size_t>(gpus_.count()))},
        nccl_{setup, gpus_.ordinals(), gpus_.count()} {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const std::string gradients = "gradients of GPU " + std::to_string(gpu), sum = "sum on GPU " + std::to_string(gpu);
      gradients_.add(setup.input<float>(count_, normal(0, 1), {.name = gradients.c_str(), .device = gpu}));
      sums_.add(setup.output<float>(count_, {.name = sum.c_str(), .device = gpu}));
      if (gpu == 0) continue;
      collected_.add(setup.scratch<float>(count_, {.device = 0}));
      returns_.add(setup.stream(gpu));
    }
  }

  // Each GPU must send its part of all other slices and receive all others' parts of its own, and then the same with the sums.
  Cost cost() const override {
    const double bytes = static_cast<double>(gradients_[0].bytes()), gpus = gpus_.count();
    return {.bytes = 2 * bytes, .peer_bytes = 2 * bytes * (gpus - 1) / gpus};
  }
  double expected_output(int, std::size_t index) const override {
    double sum = 0;
    for (const Input<float>& each : gradients_) sum += each.host(index);
    return sum;
  }
  void validate(std::string_view) override { demand_equal_copies(gpus_, sums_.pointers<float>(), sums_[0].bytes()); }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("reduced", static_cast<double>(gradients_[0].bytes()) / 1e9, "GB/s");
  }

  // One direction of GPU 0's link at a time.
  void star(Launch& launch) { star_in(launch, count_); }
  // Pieces are added while the next ones arrive, and returned at the same time.
  void star_chunked(Launch& launch) { star_in(launch, chunk_floats); }

  void nccl_allreduce(Launch& launch) {
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu)
        nccl_->all_reduce(gpu, gradients_[gpu], sums_[gpu], count_, nccl::Type::fp32, launch.streams[gpu]);
    });
  }

  // Each GPU reads its slice from all others and stores the sum to all. The gradients are complete at entry: the harness has
  // all streams wait for the first one's. In a training step a barrier among the GPUs comes before.
  void symmetric_two_shot(Launch& launch) {
    const std::size_t slice = count_ / static_cast<std::size_t>(gpus_.count());
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gpus_.launch(gpu, launch.streams[gpu], sum_kernel, {blocks(slice), threads}, gradients_.pointers<const float>(),
                   gpus_.count(), sums_.pointers<float>(), gpus_.count(), static_cast<std::size_t>(gpu) * slice);
    gpus_.meet(launch.streams);
  }

  // Each GPU reads everything from everybody.
  void one_shot_pull(Launch& launch) {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gpus_.launch(gpu, launch.streams[gpu], sum_kernel, {blocks(count_), threads}, gradients_.pointers<const float>(),
                   gpus_.count(), OnGpus<float>{{sums_[gpu]}}, 1, std::size_t{0});
    gpus_.meet(launch.streams);
  }

 private:
  static unsigned blocks(std::size_t floats) { return static_cast<unsigned>(floats / block_floats); }

  void star_in(Launch& launch, std::size_t piece) {
    OnGpus<const float> sources = gradients_.pointers<const float>();
    for (int gpu = 1; gpu < gpus_.count(); ++gpu) sources.at[gpu] = collected_[gpu - 1];
    for (std::size_t first = 0; first < count_; first += piece) {
      const std::size_t floats = std::min(piece, count_ - first);
      for (int gpu = 1; gpu < gpus_.count(); ++gpu) {
        check(cudaMemcpyPeerAsync(collected_[gpu - 1] + first, gpus_.ordinal(0), gradients_[gpu] + first, gpus_.ordinal(gpu),
                                  floats * sizeof(float), launch.streams[gpu]));
        gpus_.order(gpu, launch.streams[gpu], launch.stream);
      }
      gpus_.launch(0, launch.stream, sum_kernel, {blocks(floats), threads}, sources, gpus_.count(), OnGpus<float>{{sums_[0]}}, 1,
                   first);
      for (int gpu = 1; gpu < gpus_.count(); ++gpu) {
        gpus_.order(0, launch.stream, returns_[gpu - 1]);
        check(cudaMemcpyPeerAsync(sums_[gpu] + first, gpus_.ordinal(gpu), sums_[0] + first, gpus_.ordinal(0),
                                  floats * sizeof(float), returns_[gpu - 1]));
      }
    }
    for (int gpu = 1; gpu < gpus_.count(); ++gpu) gpus_.order(gpu, returns_[gpu - 1], launch.streams[gpu]);
  }

  Gpus gpus_;
  std::size_t count_;
  Each<Input<float>> gradients_;
  Each<Output<float>> sums_;
  Each<Scratch<float>> collected_;  // of all GPUs but the first, in its memory
  Each<cudaStream_t> returns_;
  Opened<Nccl> nccl_;
};

}  // namespace

extern constinit const Pair dataparallel{
    .teaches = "gradients collected on one GPU use its link one way at a time; an all-reduce uses all links both ways at once",
    .lesson = "nccl_allreduce",
    .make = make<Dataparallel>,
    .baseline = {.name = "star", .run = call<&Dataparallel::star>},
    .optimized = variants({{.name = "star_chunked", .run = call<&Dataparallel::star_chunked>},
                           {.name = "nccl_allreduce",
                            .run = call<&Dataparallel::nccl_allreduce>,
                            .needs = {.libraries = {Library::nccl}},
                            .gains_over = "star"},
                           {.name = "symmetric_two_shot", .run = call<&Dataparallel::symmetric_two_shot>}}),
    .controls = variants({{.name = "one_shot_pull", .run = call<&Dataparallel::one_shot_pull>}}),
    .bound = Bound::transfer,
    .tolerance = within(1e-6),  // a few roundings to fp32
    .needs = {.gpus = 2, .peer_access = true},
};

}  // namespace aisp::ch04
