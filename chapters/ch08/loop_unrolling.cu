// SPDX-License-Identifier: Apache-2.0
// A depthwise convolution of 7 x 7 taps, as ConvNeXt has it. A kernel for any size loops over the taps: each costs an index, a
// test whether it lies in the image, and two loads for one multiply-add. With the size known when it is compiled, loops unroll
// and indices become constants; outputs whose window lies inside need no tests. And only then can a thread that walks down a
// column keep the 49 weights and the seven outputs under way in registers: 7 loads for 49 multiply-adds.
#include <aisp/pair.hpp>

#include "depthwise_cudnn.hpp"
#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int taps = 7, channels = 96, side = 112, plane = side * side;
constexpr int threads = 256, walkers = 128;  // of a block
static_assert(side % taps == 0);

// Sum over the taps of the output at row `y`, column `x`. Taps outside of the image count as zeros.
__device__ __forceinline__ float convolve(const float* in, const float* weights, int y, int x, int size) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < size; ++i)
#pragma unroll
    for (int j = 0; j < size; ++j) {
      const int row = y + i - size / 2, column = x + j - size / 2;
      if (row >= 0 && row < side && column >= 0 && column < side) sum = fmaf(weights[i * size + j], in[row * side + column], sum);
    }
  return sum;
}

__global__ __launch_bounds__(threads) void generic_kernel(const float* in, const float* weights, float* out, int size) {
  const unsigned i = blockIdx.x * threads + threadIdx.x, image = i / plane, pixel = i % plane;
  out[i] = convolve(in + image * plane, weights + image % channels * (size * size), static_cast<int>(pixel / side),
                    static_cast<int>(pixel % side), size);
}

__global__ __launch_bounds__(threads) void unrolled_kernel(const float* in, const float* weights, float* out) {
  const unsigned i = blockIdx.x * threads + threadIdx.x, image = i / plane, pixel = i % plane;
  out[i] = convolve(in + image * plane, weights + image % channels * (taps * taps), static_cast<int>(pixel / side),
                    static_cast<int>(pixel % side), taps);
}

// Outputs inside come first, those of the frame after them, so that hardly a warp has both.
__global__ __launch_bounds__(threads) void interior_kernel(const float* in, const float* weights, float* out, unsigned inner) {
  constexpr unsigned half = taps / 2, within = side - 2 * half, framed = plane - within * within;
  unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i < inner) {
    const unsigned image = i / (within * within), pixel = i % (within * within), y = pixel / within, x = pixel % within;
    const float *const corner = in + image * plane + y * side + x, *const own = weights + image % channels * (taps * taps);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < taps * taps; ++k) sum = fmaf(own[k], corner[k / taps * side + k % taps], sum);
    out[image * plane + (y + half) * side + x + half] = sum;
    return;
  }
  i -= inner;
  const unsigned image = i / framed, pixel = i % framed;  // the frame: rows above, rows below, then the columns at both sides
  constexpr unsigned above = half * side;
  unsigned y = pixel < above ? pixel / side : pixel / side + within, x = pixel % side;
  if (pixel >= 2 * above) {
    y = half + (pixel - 2 * above) / (2 * half);
    x = (pixel - 2 * above) % (2 * half);
    x = x < half ? x : x + within;
  }
  out[image * plane + y * side + x] =
      convolve(in + image * plane, weights + image % channels * (taps * taps), static_cast<int>(y), static_cast<int>(x), taps);
}

// A thread has a column of an image. A row that it reads adds to the seven outputs around it, which take turns in `sums`; output
// y is in sums[y % size]. `fixed` is the size, or 0 where it is known at run time only and the arrays cannot be in registers.
template <int fixed>
__global__ __launch_bounds__(walkers) void rows_kernel(const float* in, const float* weights, float* out, int given) {
  const int size = fixed > 0 ? fixed : given, half = size / 2;
  const unsigned i = blockIdx.x * walkers + threadIdx.x, image = i / side;
  const int x = static_cast<int>(i % side);
  const float* const from = in + image * plane + x;
  float* const to = out + image * plane + x;
  float weight[taps * taps], sums[taps] = {}, row[taps], next[taps];
#pragma unroll
  for (int k = 0; k < size * size; ++k) weight[k] = weights[image % channels * (size * size) + k];
  const auto load = [&](int y) {
#pragma unroll
    for (int j = 0; j < size; ++j) {
      const int column = x + j - half;
      next[j] = column >= 0 && column < side && y < side ? from[y * side + j - half] : 0;
    }
  };
  load(0);
  for (int first = 0; first < side; first += size)
#pragma unroll
    for (int r = 0; r < size; ++r) {
#pragma unroll
      for (int j = 0; j < size; ++j) row[j] = next[j];
      load(first + r + 1);
      sums[(r + half) % size] = 0;  // the output `half` rows on begins
#pragma unroll
      for (int i_tap = 0; i_tap < size; ++i_tap) {
        float& sum = sums[(r + half - i_tap + size) % size];
#pragma unroll
        for (int j = 0; j < size; ++j) sum = fmaf(weight[i_tap * size + j], row[j], sum);
      }
      if (first + r >= half) to[(first + r - half) * side] = sums[(r - half + size) % size];
    }
#pragma unroll
  for (int y = 0; y < half; ++y) to[(side - half + y) * side] = sums[(side - half + y) % size];
}

class LoopUnrolling final : public Workload {
 public:
  explicit LoopUnrolling(Setup& setup)
      : batch_{setup.scaled(128, 2)},
        in_{setup.input<float>(batch_ * channels * plane, uniform(-1, 1), {.name = "images"})},
        weights_{setup.input<float>(std::size_t{channels} * taps * taps, uniform(-1, 1), {.name = "weights"})},
        out_{setup.output<float>(batch_ * channels * plane, {.name = "convolved"})},
        cudnn_{setup, static_cast<int>(batch_), channels, side, taps} {}

  // Taps outside of the images are not counted.
  Cost cost() const override {
    constexpr double along = taps * side - taps / 2 * (taps / 2 + 1);  // taps inside, over the outputs of a row
    return {.flops = 2 * along * along * static_cast<double>(batch_ * channels),
            .bytes = static_cast<double>(in_.bytes() + weights_.bytes() + out_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t image = index / plane;
    const int y = static_cast<int>(index % plane) / side, x = static_cast<int>(index % side);
    double sum = 0;
    for (int i = 0; i < taps; ++i)
      for (int j = 0; j < taps; ++j) {
        const int row = y + i - taps / 2, column = x + j - taps / 2;
        if (row < 0 || row >= side || column < 0 || column >= side) continue;
        sum += weights_.host(image % channels * (taps * taps) + static_cast<std::size_t>(i * taps + j)) *
               in_.host(image * plane + static_cast<std::size_t>(row * side + column));
      }
    return sum;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "cudnn_depthwise") launched_.report(metrics);
  }

  void generic_loops(Launch& launch) { launched_.launch(launch, generic_kernel, {blocks(), threads}, in_, weights_, out_, taps); }
  void unrolled(Launch& launch) { launched_.launch(launch, unrolled_kernel, {blocks(), threads}, in_, weights_, out_); }
  void unrolled_interior(Launch& launch) {
    constexpr std::size_t within = side - taps + 1;
    launched_.launch(launch, interior_kernel, {blocks(), threads}, in_, weights_, out_, batch_ * channels * within * within);
  }
  void unrolled_rows(Launch& launch) { walk(launch, rows_kernel<taps>); }
  void rows_in_loops(Launch& launch) { walk(launch, rows_kernel<0>); }
  void tune(Launch& launch) { cudnn_->tune(launch.stream, in_, weights_, out_); }
  void cudnn_depthwise(Launch& launch) { cudnn_->run(launch.stream, in_, weights_, out_); }

 private:
  using Walk = void (*)(const float*, const float*, float*, int);
  unsigned blocks() const { return static_cast<unsigned>(out_.size() / threads); }
  void walk(Launch& launch, Walk kernel) {
    launched_.launch(launch, kernel, {static_cast<unsigned>(out_.size() / side / walkers), walkers}, in_, weights_, out_, taps);
  }

  std::size_t batch_;
  Input<float> in_, weights_;
  Output<float> out_;
  Opened<CudnnDepthwise> cudnn_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair loop_unrolling{
    .teaches = "loops over bounds known at compile time cost no indices and no tests",
    .lesson = "unrolled",
    .make = make<LoopUnrolling>,
    .baseline = {.name = "generic_loops", .run = call<&LoopUnrolling::generic_loops>},
    .optimized = variants({{.name = "unrolled", .run = call<&LoopUnrolling::unrolled>},
                           {.name = "unrolled_interior", .run = call<&LoopUnrolling::unrolled_interior>},
                           {.name = "unrolled_rows", .run = call<&LoopUnrolling::unrolled_rows>, .gains_over = "unrolled"}}),
    .controls = variants({{.name = "rows_in_loops", .run = call<&LoopUnrolling::rows_in_loops>}}),
    .libraries = variants({{.name = "cudnn_depthwise",
                            .run = call<&LoopUnrolling::cudnn_depthwise>,
                            .prepare = call<&LoopUnrolling::tune>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(taps * taps),
    .reference_samples = 65536,  // a tenth of them in the frame
};

}  // namespace aisp::ch08
