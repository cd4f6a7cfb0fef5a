// SPDX-License-Identifier: Apache-2.0
// Adding two batches of long vectors. A block runs on one SM from its first thread to its last, so one block for each sample of a
// batch leaves all SMs idle that the batch has no sample for. Eight blocks a sample put one block on nearly every SM; a block for
// every 256 elements fills each SM with as many threads as it holds, whatever the batch.
#include <aisp/pair.hpp>

#include <cub/device/device_transform.cuh>

#include <algorithm>
#include <tuple>

namespace aisp::ch06 {
namespace {

constexpr int strided_threads = 1024, threads = 256;
constexpr std::size_t granule = 2 * threads;  // elements of a block with two loads

// blockIdx.y is the sample; the blocks of a sample stride through it together.
__global__ void strided_kernel(const float* x, const float* y, float* out, std::size_t length) {
  const std::size_t sample = blockIdx.y * length;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < length; i += gridDim.x * blockDim.x)
    out[sample + i] = x[sample + i] + y[sample + i];
}

__global__ __launch_bounds__(threads) void grid_kernel(const float* x, const float* y, float* out, std::size_t length) {
  const std::size_t i = blockIdx.y * length + blockIdx.x * threads + threadIdx.x;
  out[i] = x[i] + y[i];
}

__global__ __launch_bounds__(threads) void grid_two_loads_kernel(const float* x, const float* y, float* out, std::size_t length) {
  const std::size_t i = blockIdx.y * length + blockIdx.x * threads + threadIdx.x, j = i + length / 2;
  const float x_first = x[i], y_first = y[i], x_second = x[j], y_second = y[j];
  out[i] = x_first + y_first;
  out[j] = x_second + y_second;
}

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};

class Add final : public Workload {
 public:
  explicit Add(Setup& setup)
      : samples_{setup.size("samples")},
        length_{std::max(setup.scaled(std::size_t{64} << 20) / samples_ / granule, std::size_t{1}) * granule},
        x_{setup.input<float>(samples_ * length_, uniform(-1, 1), {.name = "x"})},
        y_{setup.input<float>(samples_ * length_, uniform(-1, 1), {.name = "y"})},
        out_{setup.output<float>(samples_ * length_, {.name = "sum"})} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(out_.size()), .bytes = static_cast<double>(x_.bytes() + y_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override { return static_cast<float>(x_.host(i)) + static_cast<float>(y_.host(i)); }

  void block_per_sample(Launch& launch) {
    launch(strided_kernel, {.blocks = grid(1), .threads = strided_threads}, x_, y_, out_, length_);
  }
  void eight_blocks(Launch& launch) {
    launch(strided_kernel, {.blocks = grid(8), .threads = strided_threads}, x_, y_, out_, length_);
  }
  void whole_grid(Launch& launch) {
    launch(grid_kernel, {.blocks = grid(length_ / threads), .threads = threads}, x_, y_, out_, length_);
  }
  void grid_two_loads(Launch& launch) {
    launch(grid_two_loads_kernel, {.blocks = grid(length_ / granule), .threads = threads}, x_, y_, out_, length_);
  }
  void cub_device_transform(Launch& launch) {
    check(cub::DeviceTransform::Transform(cuda::std::make_tuple(x_.get(), y_.get()), out_.get(),
                                          static_cast<std::int64_t>(out_.size()), Plus{}, launch.stream));
  }

 private:
  dim3 grid(std::size_t blocks_per_sample) const {
    return {static_cast<unsigned>(blocks_per_sample), static_cast<unsigned>(samples_)};
  }

  std::size_t samples_, length_;  // elements of one sample
  Input<float> x_, y_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair add{
    .teaches = "a block lives on one SM: only more blocks reach the others, so the grid must not follow the batch size",
    .lesson = "grid",
    .make = make<Add>,
    .baseline = {.name = "block_per_sample", .run = call<&Add::block_per_sample>},
    .optimized = variants({{.name = "eight_blocks", .run = call<&Add::eight_blocks>},
                           {.name = "grid", .run = call<&Add::whole_grid>},
                           {.name = "grid_two_loads", .run = call<&Add::grid_two_loads>}}),
    .libraries = variants({{.name = "cub_device_transform", .run = call<&Add::cub_device_transform>}}),
    .bound = Bound::memory,
    .tolerance = exact,
    // The elements stay the same in number: more samples are shorter ones. A grid has at most 65535 blocks along y.
    .sizes = sizes({{.name = "samples", .full = 16, .most = 32768, .scales = false}}),
    .sweep = cases({{"samples_1", "samples=1"},
                    {"samples_4", "samples=4"},
                    {"samples_16", "samples=16"},
                    {"samples_64", "samples=64"},
                    {"samples_132", "samples=132"},
                    {"samples_256", "samples=256"},
                    {"samples_1024", "samples=1024"}}),
    .edges = cases({{"samples_1", "samples=1"}, {"samples_7", "samples=7"}}),
    .reference_samples = 1 << 20,
};

}  // namespace aisp::ch06
