// SPDX-License-Identifier: Apache-2.0
// The squared norm of a gradient of 256 Mi values. A grid of 256 blocks, a constant as it stands in much code, puts two blocks on
// each SM of a large GPU, where eight would fit, and too few loads are on their way. The runtime says how many blocks of a kernel
// an SM holds: a grid of that size fits every GPU. Wide loads, several at a time, then keep enough bytes in flight.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cub/device/device_reduce.cuh>
#include <cuda/std/functional>

#include <algorithm>
#include <functional>
#include <vector>

namespace aisp::ch06 {
namespace {

constexpr unsigned fixed_threads = 256;
constexpr std::size_t granule = 4;
constexpr int in_flight = 4;  // 16-byte loads

__device__ float sum_of_squares(float4 v) { return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w))); }

__device__ void store_sum(float sum, float* sums) {
  __shared__ float shared[device::largest_block_in_warps];
  sum = device::block_sum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void narrow_kernel(const float* in, std::size_t count, float* sums) {
  float sum = 0;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) sum = fmaf(in[i], in[i], sum);
  store_sum(sum, sums);
}

__global__ void wide_kernel(const float4* in, std::size_t count, float* sums) {
  float sum = 0;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (in_flight - 1) * stride < count; i += in_flight * stride) {
    float4 values[in_flight];
#pragma unroll
    for (int k = 0; k < in_flight; ++k) values[k] = in[i + k * stride];
#pragma unroll
    for (const float4& value : values) sum += sum_of_squares(value);
  }
  for (; i < count; i += stride) sum += sum_of_squares(in[i]);
  store_sum(sum, sums);
}

// One block adds the sums of all blocks, always in the same order.
__global__ __launch_bounds__(1024) void finish_kernel(const float* sums, unsigned count, float* total) {
  __shared__ float shared[device::largest_block_in_warps];
  float sum = 0;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) sum += sums[i];
  sum = device::block_sum(sum, shared);
  if (threadIdx.x == 0) *total = sum;
}

struct Square {
  __host__ __device__ float operator()(float x) const { return x * x; }
};

class OccupancyApi final : public Workload {
 public:
  explicit OccupancyApi(Setup& setup)
      : fixed_{.blocks = static_cast<unsigned>(setup.size("blocks")), .threads = fixed_threads},
        narrow_{all_resident(narrow_kernel)},
        wide_{all_resident(wide_kernel)},
        count_{setup.scaled(std::size_t{256} << 20, granule)},
        in_{setup.input<float>(count_, normal(0, 1), {.name = "gradient"})},
        norm_{setup.output<float>(1, {.name = "squared norm"})},
        sums_{setup.scratch<float>(std::max({fixed_.blocks.x, narrow_.blocks.x, wide_.blocks.x}), {.name = "sums of blocks"})},
        cub_bytes_{cub_reduce(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_)},
        team_{setup.threads(setup.cpus(), false)} {}

  Cost cost() const override { return {.flops = 2.0 * static_cast<double>(count_), .bytes = static_cast<double>(in_.bytes())}; }
  void compute_reference(Launch&) override {
    std::vector<double> parts(static_cast<std::size_t>(team_.size()));
    team_.run([&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      double sum = 0;
      for (std::size_t i = count_ * w / parts.size(); i < count_ * (w + 1) / parts.size(); ++i) sum += in_.host(i) * in_.host(i);
      parts[w] = sum;
    });
    expected_ = 0;
    for (const double part : parts) expected_ += part;
  }
  double expected(std::size_t) const override { return expected_; }

  void metrics(std::string_view variant, Metrics& metrics) override {
    const Grid& grid = variant == "queried" ? narrow_ : variant == "queried_vec16" ? wide_ : fixed_;
    if (!variant.starts_with("cub"))
      metrics.report("threads_of_grid", static_cast<double>(grid.blocks.x * grid.threads.x), "threads", Metrics::Better::higher);
  }

  void fixed(Launch& launch) { narrow(launch, fixed_); }
  void queried(Launch& launch) { narrow(launch, narrow_); }
  void fixed_vec16(Launch& launch) { wide(launch, fixed_); }
  void queried_vec16(Launch& launch) { wide(launch, wide_); }
  void cub_device_reduce(Launch& launch) { cub_reduce(cub_space_, cub_bytes_, launch.stream); }

 private:
  // The size of a block that fills an SM best, and as many blocks as all SMs hold.
  template <class Kernel>
  static Grid all_resident(Kernel kernel) {
    int blocks = 0, threads = 0;
    check(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, kernel));
    return {.blocks = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(threads)};
  }
  void narrow(Launch& launch, const Grid& grid) {
    launch(narrow_kernel, grid, in_, count_, sums_);
    launch(finish_kernel, {.blocks = 1, .threads = 1024}, sums_, grid.blocks.x, norm_);
  }
  void wide(Launch& launch, const Grid& grid) {
    launch(wide_kernel, grid, reinterpret_cast<const float4*>(in_.get()), count_ / 4, sums_);
    launch(finish_kernel, {.blocks = 1, .threads = 1024}, sums_, grid.blocks.x, norm_);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_reduce(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceReduce::TransformReduce(space, bytes, in_.get(), norm_.get(), static_cast<std::int64_t>(count_),
                                             cuda::std::plus<>{}, Square{}, 0.0f, stream));
    return bytes;
  }

  Grid fixed_, narrow_, wide_;
  std::size_t count_;
  Input<float> in_;
  Output<float> norm_;
  Scratch<float> sums_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  ThreadTeam& team_;
  double expected_ = 0;
};

}  // namespace

extern constinit const Pair occupancy_api{
    .teaches = "a fixed grid fits the GPU that it was written for; the runtime's occupancy times the number of SMs fits this one",
    .lesson = "queried",
    .make = make<OccupancyApi>,
    .baseline = {.name = "fixed", .run = call<&OccupancyApi::fixed>},
    .optimized = variants({{.name = "queried", .run = call<&OccupancyApi::queried>},
                           {.name = "queried_vec16", .run = call<&OccupancyApi::queried_vec16>}}),
    .controls = variants({{.name = "fixed_vec16", .run = call<&OccupancyApi::fixed_vec16>}}),
    .libraries = variants({{.name = "cub_device_reduce", .run = call<&OccupancyApi::cub_device_reduce>}}),
    .bound = Bound::memory,
    // A thread adds 4096 positive numbers one after another, each sum rounded to 6e-8; over the threads the errors average out.
    .tolerance = within(1e-5),
    // Blocks of the fixed grids; the cases are one to eight for each of 132 SMs. A sum near n keeps multiples of n / 2^24 alone,
    // and most squares of normally distributed values are small, so that rounding them to a step s takes off 0.05 s^1.5 on
    // average, always in one direction. The 2^20 / blocks squares of a thread are off by 4.5e-4 / blocks^1.5: by 7e-6 with 16
    // blocks, by 2.5e-6 with 32.
    .sizes = sizes({{.name = "blocks", .full = 256, .least = 32, .scales = false}}),
    .sweep = cases({{"per_sm_1", "blocks=132"},
                    {"per_sm_2", "blocks=264"},
                    {"per_sm_3", "blocks=396"},
                    {"per_sm_4", "blocks=528"},
                    {"per_sm_5", "blocks=660"},
                    {"per_sm_6", "blocks=792"},
                    {"per_sm_7", "blocks=924"},
                    {"per_sm_8", "blocks=1056"}}),
    .edges = cases({{"blocks_127", "blocks=127"}}),
};

}  // namespace aisp::ch06
