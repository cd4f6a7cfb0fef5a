// SPDX-License-Identifier: Apache-2.0
// The squared error between two tensors, summed. Additions to one address are done one after another in one slice of L2, so four
// million threads that each add their sum queue up. A warp that adds its lanes first asks a thirty-second as often, a block once.
// Blocks that stay resident need few requests anyway, and a fixed order of the additions gives the same bits in every run.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_reduce.cuh>

#include <vector>

#include "generated.cuh"

namespace aisp::ch06 {
namespace {

constexpr int threads = 256, in_flight = 4;  // elements of each tensor that a thread requests at once
constexpr std::size_t granule = 65536;

__host__ __device__ double squared_error(float x, float y) {
  const double difference = static_cast<double>(x) - static_cast<double>(y);
  return difference * difference;
}

// Returns a thread's sum: its elements lie a grid apart.
__device__ double sum_of_thread(const float* x, const float* y, std::size_t count) {
  double sum = 0;
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < count; i += stride) sum += squared_error(x[i], y[i]);
  return sum;
}

// The same with eight loads on their way at any time.
__device__ double sum_of_resident_thread(const float* x, const float* y, std::size_t count) {
  double sum = 0;
  const std::size_t stride = std::size_t{gridDim.x} * threads;
  std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  for (; i + (in_flight - 1) * stride < count; i += in_flight * stride) {
    float from_x[in_flight], from_y[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) {
      from_x[k] = x[i + k * stride];
      from_y[k] = y[i + k * stride];
    }
#pragma unroll
    for (int k = 0; k < in_flight; ++k) sum += squared_error(from_x[k], from_y[k]);
  }
  for (; i < count; i += stride) sum += squared_error(x[i], y[i]);
  return sum;
}

__global__ __launch_bounds__(threads) void atomic_per_thread_kernel(const float* x, const float* y, std::size_t count,
                                                                    double* loss) {
  atomicAdd(loss, sum_of_thread(x, y, count));
}

__global__ __launch_bounds__(threads) void own_slot_kernel(const float* x, const float* y, std::size_t count, double* slots) {
  slots[blockIdx.x * threads + threadIdx.x] = sum_of_thread(x, y, count);
}

__global__ __launch_bounds__(threads) void warp_aggregated_kernel(const float* x, const float* y, std::size_t count,
                                                                  double* loss) {
  const double sum = device::warp_sum(sum_of_thread(x, y, count));
  if (threadIdx.x % 32 == 0) atomicAdd(loss, sum);
}

__global__ __launch_bounds__(threads) void block_reduce_kernel(const float* x, const float* y, std::size_t count, double* loss) {
  __shared__ double shared[threads / 32];
  const double sum = device::block_sum(sum_of_thread(x, y, count), shared);
  if (threadIdx.x == 0) atomicAdd(loss, sum);
}

__global__ __launch_bounds__(threads) void resident_grid_kernel(const float* x, const float* y, std::size_t count, double* loss) {
  __shared__ double shared[threads / 32];
  const double sum = device::block_sum(sum_of_resident_thread(x, y, count), shared);
  if (threadIdx.x == 0) atomicAdd(loss, sum);
}

// `finished` counts blocks. The one that finds all others finished adds what they have stored, in the order of the blocks.
__global__ __launch_bounds__(threads) void last_block_kernel(const float* x, const float* y, std::size_t count, double* sums,
                                                             unsigned* finished, double* loss) {
  __shared__ double shared[threads / 32];
  __shared__ bool last;
  double sum = device::block_sum(sum_of_resident_thread(x, y, count), shared);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  sum = 0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += threads) sum += __ldcg(sums + block);
  sum = device::block_sum(sum, shared);
  if (threadIdx.x == 0) *loss = sum;
}

// The terms that CUB adds up.
struct SquaredError {
  const float *x, *y;
  __host__ __device__ double operator()(std::ptrdiff_t i) const { return squared_error(x[i], y[i]); }
};

class Atomics final : public Workload {
 public:
  explicit Atomics(Setup& setup)
      : count_{setup.scaled(std::size_t{64} << 20, granule)},
        blocks_{static_cast<unsigned>(count_ / setup.size("squares") / threads)},
        x_{setup.input<float>(count_, uniform(-1, 1), {.name = "prediction"})},
        y_{setup.input<float>(count_, uniform(-1, 1), {.name = "target"})},
        loss_{setup.output<double>(1, {.name = "loss"})},
        slots_{setup.scratch<double>(std::size_t{blocks_} * threads, {.name = "slots"})},
        finished_{setup.scratch<unsigned>(1, {.name = "finished blocks"})},
        resident_{resident_blocks(resident_grid_kernel)},
        resident_last_{resident_blocks(last_block_kernel)},
        sums_{setup.scratch<double>(resident_last_, {.name = "sums of blocks"})},
        cub_bytes_{cub_reduce(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override {
    return {
        .flops = 3.0 * static_cast<double>(count_), .math = Math::fp64, .bytes = static_cast<double>(x_.bytes() + y_.bytes())};
  }
  void compute_reference(Launch&) override {
    std::vector<double> parts(static_cast<std::size_t>(team_.size()));
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      double sum = 0;
      for (std::size_t i = count_ * w / parts.size(); i < count_ * (w + 1) / parts.size(); ++i) {
        const double difference = x_.host(i) - y_.host(i);
        sum += difference * difference;
      }
      parts[w] = sum;
    });
    expected_ = 0;
    for (const double part : parts) expected_ += part;
  }
  double expected(std::size_t) const override { return expected_; }

  void atomic_per_thread(Launch& launch) { add_up(launch, atomic_per_thread_kernel, blocks_); }
  void warp_aggregated(Launch& launch) { add_up(launch, warp_aggregated_kernel, blocks_); }
  void block_reduce(Launch& launch) { add_up(launch, block_reduce_kernel, blocks_); }
  void resident_grid(Launch& launch) { add_up(launch, resident_grid_kernel, resident_); }
  void last_block(Launch& launch) {
    check(cudaMemsetAsync(finished_, 0, finished_.bytes(), launch.stream));
    launch(last_block_kernel, {.blocks = resident_last_, .threads = threads}, x_, y_, count_, sums_, finished_, loss_);
  }
  void own_slot(Launch& launch) { launch(own_slot_kernel, {.blocks = blocks_, .threads = threads}, x_, y_, count_, slots_); }
  void cub_device_reduce(Launch& launch) { cub_reduce(cub_space_, cub_bytes_, launch.stream); }

 private:
  template <class... Parameters>
  static unsigned resident_blocks(void (*kernel)(Parameters...)) {
    int device = 0, sms = 0, blocks_per_sm = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, kernel, threads, 0));
    return static_cast<unsigned>(sms * blocks_per_sm);
  }
  template <class Kernel>
  void add_up(Launch& launch, Kernel kernel, unsigned blocks) {
    check(cudaMemsetAsync(loss_, 0, loss_.bytes(), launch.stream));
    launch(kernel, {.blocks = blocks, .threads = threads}, x_, y_, count_, loss_);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_reduce(void* space, std::size_t bytes, cudaStream_t stream) {
    const Generated errors{SquaredError{x_, y_}};
    check(cub::DeviceReduce::Sum(space, bytes, errors, loss_.get(), static_cast<std::int64_t>(count_), stream));
    return bytes;
  }

  std::size_t count_;
  unsigned blocks_;
  Input<float> x_, y_;
  Output<double> loss_;
  Scratch<double> slots_;
  Scratch<unsigned> finished_;
  unsigned resident_, resident_last_;
  Scratch<double> sums_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  double expected_ = 0;
};

}  // namespace

extern constinit const Pair atomics{
    .teaches = "atomics on one address are served one after another; a block that reduces first sends one",
    .lesson = "block_reduce",
    .make = make<Atomics>,
    .baseline = {.name = "atomic_per_thread", .run = call<&Atomics::atomic_per_thread>, .deterministic = false},
    .optimized = variants({{.name = "warp_aggregated", .run = call<&Atomics::warp_aggregated>, .deterministic = false},
                           {.name = "block_reduce", .run = call<&Atomics::block_reduce>, .deterministic = false},
                           {.name = "resident_grid", .run = call<&Atomics::resident_grid>, .deterministic = false},
                           {.name = "last_block", .run = call<&Atomics::last_block>}}),
    .controls = variants({{.name = "own_slot", .run = call<&Atomics::own_slot>, .outputs = no_outputs}}),
    .libraries = variants({{.name = "cub_device_reduce", .run = call<&Atomics::cub_device_reduce>}}),
    .bound = Bound::memory,
    // Sums of 64 Mi positive fp64 numbers in any order: 1e-16 times a few thousand additions one after another at most.
    .tolerance = within(1e-9),
    .sizes = sizes({{.name = "squares", .full = 16, .most = 256, .scales = false}}),
    .sweep = cases({{"squares_1", "squares=1"},
                    {"squares_4", "squares=4"},
                    {"squares_16", "squares=16"},
                    {"squares_64", "squares=64"},
                    {"squares_256", "squares=256"}}),
    .edges = cases({{"squares_1", "squares=1"}, {"squares_7", "squares=7"}}),
};

}  // namespace aisp::ch06
