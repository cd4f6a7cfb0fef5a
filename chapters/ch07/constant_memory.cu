// SPDX-License-Identifier: Apache-2.0
// A convolution with one 9 x 9 filter. Every output multiplies 81 pixels, which lie in shared memory, by the same 81
// coefficients. Read from global memory, each coefficient is one more load of every warp, and the load unit, which takes one
// instruction where the FMA units take four, is the limit. From the constant bank it reaches the FMA through a uniform register:
// then only the pixels are loads, and a thread with several outputs loads each pixel once for all of them.
#include <aisp/pair.hpp>

#include <array>

#include "cudnn_filter.hpp"

namespace aisp::ch07 {
namespace {

constexpr int columns = 8192;
constexpr int block_columns = 32, block_rows = 16;  // threads
constexpr int widest = 11;

__constant__ float constant_filter[widest * widest];

template <int width>
struct Filter {
  float at[width * width];
};

// The source of a kernel's coefficients: coefficient(i) of a row-major filter.
template <int width>
struct FromGlobal {
  const float* __restrict__ filter;
  __device__ float operator()(int i) const { return __ldg(filter + i); }
};
struct FromSymbol {
  __device__ float operator()(int i) const { return constant_filter[i]; }
};
template <int width>
struct FromArgument {
  const Filter<width>& filter;
  __device__ float operator()(int i) const { return filter.at[i]; }
};
struct FromShared {
  const float* filter;
  __device__ float operator()(int i) const { return filter[i]; }
};

// `rows` outputs of a thread, one below the other; a block has 32 columns and 16 x `rows` rows of the image, and a border.
template <int width, int rows, class Coefficients>
__device__ void convolve(const float* image, float* out, int image_rows, const Coefficients& coefficient) {
  constexpr int radius = width / 2;
  constexpr int tile_rows = block_rows * rows + 2 * radius, tile_columns = block_columns + 2 * radius;
  __shared__ float tile[tile_rows][tile_columns];
  const int left = blockIdx.x * block_columns, top = blockIdx.y * block_rows * rows;
  for (int y = threadIdx.y; y < tile_rows; y += block_rows) {
    for (int x = threadIdx.x; x < tile_columns; x += block_columns) {
      const int row = top + y - radius, column = left + x - radius;
      const bool inside = row >= 0 && row < image_rows && column >= 0 && column < columns;
      tile[y][x] = inside ? image[static_cast<std::size_t>(row) * columns + column] : 0;
    }
  }
  __syncthreads();
  float sum[rows] = {};
#pragma unroll
  for (int x = 0; x < width; ++x) {
#pragma unroll
    for (int y = 0; y < width + rows - 1; ++y) {
      const float pixel = tile[threadIdx.y * rows + y][threadIdx.x + x];
#pragma unroll
      for (int r = 0; r < rows; ++r)
        if (y >= r && y < r + width) sum[r] = fmaf(coefficient((y - r) * width + x), pixel, sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < rows; ++r)
    out[static_cast<std::size_t>(top + threadIdx.y * rows + r) * columns + left + threadIdx.x] = sum[r];
}

template <int width>
__global__ __launch_bounds__(block_columns* block_rows) void global_kernel(const float* image, const float* __restrict__ filter,
                                                                           float* out, int rows) {
  convolve<width, 1>(image, out, rows, FromGlobal<width>{filter});
}
template <int width>
__global__ __launch_bounds__(block_columns* block_rows) void symbol_kernel(const float* image, float* out, int rows) {
  convolve<width, 1>(image, out, rows, FromSymbol{});
}
template <int width, int rows_of_a_thread>
__global__ __launch_bounds__(block_columns* block_rows) void argument_kernel(const float* image,
                                                                             const __grid_constant__ Filter<width> filter,
                                                                             float* out, int rows) {
  convolve<width, rows_of_a_thread>(image, out, rows, FromArgument<width>{filter});
}
template <int width>
__global__ __launch_bounds__(block_columns* block_rows) void shared_kernel(const float* image, const float* filter, float* out,
                                                                           int rows) {
  __shared__ float copy[width * width];
  const int thread = threadIdx.y * block_columns + threadIdx.x;
  if (thread < width * width) copy[thread] = filter[thread];  // convolve() has a barrier before it reads them
  convolve<width, 1>(image, out, rows, FromShared{copy});
}

class ConstantMemory final : public Workload {
 public:
  explicit ConstantMemory(Setup& setup)
      : rows_{setup.scaled(8192, std::size_t{block_rows} * 4)},
        width_{setup.size("width")},
        image_{setup.input<float>(rows_ * columns, uniform(0, 1), {.name = "image"})},
        filter_{setup.input<float>(width_ * width_, uniform(-1, 1), {.name = "filter", .constant = true})},
        out_{setup.output<float>(rows_ * columns, {.name = "convolved"})},
        cudnn_{setup, rows_, columns, width_},
        tuned_cudnn_{setup, rows_, columns, width_},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(filter_.size() * out_.size()),
            .bytes = static_cast<double>(image_.bytes() + filter_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const auto width = static_cast<std::ptrdiff_t>(width_), rows = static_cast<std::ptrdiff_t>(rows_);
    const auto row = static_cast<std::ptrdiff_t>(i / columns), column = static_cast<std::ptrdiff_t>(i % columns);
    double sum = 0;
    for (std::ptrdiff_t y = 0; y < width; ++y)
      for (std::ptrdiff_t x = 0; x < width; ++x) {
        const std::ptrdiff_t from_row = row + y - width / 2, from = column + x - width / 2;
        if (from_row >= 0 && from_row < rows && from >= 0 && from < columns)
          sum += filter_.host(static_cast<std::size_t>(y * width + x)) *
                 image_.host(static_cast<std::size_t>(from_row * columns + from));
      }
    return sum;
  }

  void global_filter(Launch& launch) {
    with_width([&]<int width>() { launch(global_kernel<width>, grid(1), image_, filter_, out_, rows_); });
  }
  void shared_filter(Launch& launch) {
    with_width([&]<int width>() { launch(shared_kernel<width>, grid(1), image_, filter_, out_, rows_); });
  }
  void fill_symbol(Launch& launch) {
    check(cudaMemcpyToSymbolAsync(constant_filter, filter_.get(), filter_.bytes(), 0, cudaMemcpyDeviceToDevice, launch.stream));
  }
  void constant_symbol(Launch& launch) {
    with_width([&]<int width>() { launch(symbol_kernel<width>, grid(1), image_, out_, rows_); });
  }
  void keep_argument(Launch&) {
    for (std::size_t i = 0; i < filter_.size(); ++i) argument_[i] = static_cast<float>(filter_.host(i));
  }
  template <int rows_of_a_thread>
  void grid_constant(Launch& launch) {
    with_width([&]<int width>() {
      Filter<width> filter;
      for (std::size_t i = 0; i < std::size_t{width} * width; ++i) filter.at[i] = argument_[i];
      launch(argument_kernel<width, rows_of_a_thread>, grid(rows_of_a_thread), image_, filter, out_, rows_);
    });
  }
  void plan_cudnn(Launch&) { cudnn_->plan(); }
  void cudnn(Launch& launch) { cudnn_->run(launch.stream, image_, filter_, out_); }
  void tune_cudnn(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    tuned_cudnn_->tune(launch.stream, image_, filter_, out_);
  }
  void cudnn_tuned(Launch& launch) { tuned_cudnn_->run(launch.stream, image_, filter_, out_); }

 private:
  template <class Run>
  void with_width(Run run) {
    switch (width_) {
      case 3: return run.template operator()<3>();
      case 5: return run.template operator()<5>();
      case 7: return run.template operator()<7>();
      case 9: return run.template operator()<9>();
      case 11: return run.template operator()<11>();
      default: throw Unsupported{"filters are compiled for widths of 3, 5, 7, 9 and 11"};
    }
  }
  Grid grid(unsigned rows_of_a_thread) const {
    return {.blocks = dim3{columns / block_columns, static_cast<unsigned>(rows_) / (block_rows * rows_of_a_thread)},
            .threads = dim3{block_columns, block_rows}};
  }

  std::size_t rows_, width_;
  Input<float> image_, filter_;
  Output<float> out_;
  Opened<CudnnFilter> cudnn_, tuned_cudnn_;
  bool reproducible_;
  std::array<float, std::size_t{widest} * widest> argument_{};
};

}  // namespace

extern constinit const Pair constant_memory{
    .teaches =
        "a coefficient from the constant bank reaches the FMA without a load; from global memory it is a load for every use",
    .lesson = "constant_symbol",
    .make = make<ConstantMemory>,
    .baseline = {.name = "global_filter", .run = call<&ConstantMemory::global_filter>},
    .optimized = variants({{.name = "constant_symbol",
                            .run = call<&ConstantMemory::constant_symbol>,
                            .prepare = call<&ConstantMemory::fill_symbol>},
                           {.name = "grid_constant",
                            .run = call<&ConstantMemory::grid_constant<1>>,
                            .prepare = call<&ConstantMemory::keep_argument>},
                           {.name = "grid_constant_4_rows",
                            .run = call<&ConstantMemory::grid_constant<4>>,
                            .prepare = call<&ConstantMemory::keep_argument>}}),
    .controls = variants({{.name = "shared_filter", .run = call<&ConstantMemory::shared_filter>}}),
    // Its engines may multiply otherwise than by the definition, as transforms do.
    .libraries = variants({{.name = "cudnn",
                            .run = call<&ConstantMemory::cudnn>,
                            .prepare = call<&ConstantMemory::plan_cudnn>,
                            .needs = {.libraries = {Library::cudnn}},
                            .tolerance = within(1e-5)},
                           {.name = "cudnn_tuned",
                            .run = call<&ConstantMemory::cudnn_tuned>,
                            .prepare = call<&ConstantMemory::tune_cudnn>,
                            .needs = {.libraries = {Library::cudnn}},
                            .tolerance = within(1e-5)}}),
    .bound = Bound::compute,
    .tolerance = reduction_of(widest * widest),
    .sizes = sizes({{.name = "width", .full = 9, .most = widest, .scales = false}}),
    .sweep = cases({{"width_3", "width=3"},
                    {"width_5", "width=5"},
                    {"width_7", "width=7"},
                    {"width_9", "width=9"},
                    {"width_11", "width=11"}}),
    .edges = cases({{"width_1", "width=1"}, {"width_5", "width=5"}}),
    .reference_samples = 65536,
};

}  // namespace aisp::ch07
