// SPDX-License-Identifier: Apache-2.0
// Bias plus ReLU over a row-major matrix: each element is read and written once, so only the order of the accesses is left to
// choose. The 32 threads of a warp differ in threadIdx.x. On the row index it spreads each access of a warp over 32 rows, 32
// transactions for 128 useful bytes; on the column index the same accesses fill one line. 16 bytes a thread then cut the
// number of instructions.
#include <aisp/pair.hpp>

#include <algorithm>

namespace aisp::ch01 {
namespace {

constexpr int columns = 8192;
constexpr int warp = 32, warps = 8;  // blocks of the two kernels with a thread per element
constexpr int wide_threads = 1024, wide_rows = 4;

// Rows first, as the indices are written: a[row][column].
__global__ __launch_bounds__(warp* warps) void row_threads_kernel(const float* in, const float* bias, float* out) {
  const int row = blockIdx.x * warp + threadIdx.x;
  const int column = blockIdx.y * warps + threadIdx.y;
  const std::size_t i = static_cast<std::size_t>(row) * columns + column;
  out[i] = fmaxf(in[i] + bias[column], 0.0f);
}

__global__ __launch_bounds__(warp* warps) void column_threads_kernel(const float* in, const float* bias, float* out) {
  const int row = blockIdx.y * warps + threadIdx.y;
  const int column = blockIdx.x * warp + threadIdx.x;
  const std::size_t i = static_cast<std::size_t>(row) * columns + column;
  out[i] = fmaxf(in[i] + bias[column], 0.0f);
}

__device__ float4 bias_relu(const float4& x, const float4& bias) {
  return make_float4(fmaxf(x.x + bias.x, 0.0f), fmaxf(x.y + bias.y, 0.0f), fmaxf(x.z + bias.z, 0.0f), fmaxf(x.w + bias.w, 0.0f));
}

// A thread stays in its four columns for four rows, so the bias costs one load for four; the four loads of the matrix are all in
// flight before the first result is needed. More rows would take more than 32 registers, and two blocks would no longer
// fit an SM.
__global__ __launch_bounds__(wide_threads) void vectorized_kernel(const float4* in, const float4* bias, float4* out) {
  constexpr int row_packets = columns / 4;
  const int packet = blockIdx.x * wide_threads + threadIdx.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.y) * wide_rows * row_packets + packet;
  float4 x[wide_rows];
#pragma unroll
  for (int row = 0; row < wide_rows; ++row) x[row] = in[first + row * row_packets];
  const float4 added = bias[packet];
#pragma unroll
  for (int row = 0; row < wide_rows; ++row) out[first + row * row_packets] = bias_relu(x[row], added);
}

class Coalescing final : public Workload {
 public:
  explicit Coalescing(Setup& setup)
      : rows_{setup.scaled(16384, warp)},
        in_{setup.input<float>(rows_ * columns, uniform(-1, 1), {.name = "matrix"})},
        bias_{setup.input<float>(columns, uniform(-0.5f, 0.5f), {.name = "bias"})},
        out_{setup.output<float>(rows_ * columns, {.name = "activations"})} {}

  Cost cost() const override {
    return {.flops = static_cast<double>(out_.size()),  // additions: a maximum is no FLOP
            .bytes = static_cast<double>(in_.bytes() + bias_.bytes() + out_.bytes())};
  }
  // The sum in fp32, rounded once: every variant must have these bits.
  double expected(std::size_t i) const override {
    return std::max(static_cast<float>(in_.host(i)) + static_cast<float>(bias_.host(i % columns)), 0.0f);
  }

  void row_threads(Launch& launch) {
    const dim3 grid{rows() / warp, columns / warps};
    row_threads_kernel<<<grid, dim3{warp, warps}, 0, launch.stream>>>(in_, bias_, out_);
    check(cudaGetLastError());
  }
  void column_threads(Launch& launch) {
    const dim3 grid{columns / warp, rows() / warps};
    column_threads_kernel<<<grid, dim3{warp, warps}, 0, launch.stream>>>(in_, bias_, out_);
    check(cudaGetLastError());
  }
  void vectorized(Launch& launch) {
    const dim3 grid{columns / 4 / wide_threads, rows() / wide_rows};
    vectorized_kernel<<<grid, wide_threads, 0, launch.stream>>>(reinterpret_cast<const float4*>(in_.get()),
                                                                reinterpret_cast<const float4*>(bias_.get()),
                                                                reinterpret_cast<float4*>(out_.get()));
    check(cudaGetLastError());
  }

 private:
  unsigned rows() const { return static_cast<unsigned>(rows_); }

  std::size_t rows_;
  Input<float> in_, bias_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair coalescing{
    .teaches = "a warp's 32 accesses become as few memory transactions as their addresses allow",
    .lesson = "column_threads",
    .make = make<Coalescing>,
    .baseline = {.name = "row_threads", .run = call<&Coalescing::row_threads>},
    .optimized = variants({{.name = "column_threads", .run = call<&Coalescing::column_threads>},
                           {.name = "vectorized", .run = call<&Coalescing::vectorized>}}),
    .bound = Bound::memory,
    .tolerance = exact,
};

}  // namespace aisp::ch01
