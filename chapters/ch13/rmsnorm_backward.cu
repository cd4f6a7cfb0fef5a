// SPDX-License-Identifier: Apache-2.0
// The backward pass of an RMS norm. The gradient of the input needs a sum along each row, that of the gains a sum along each
// column. As two kernels, both read x and dy, 268 MB each. A block that takes one row after the other can do both with what it
// holds: its threads keep their columns' sums in registers, and only as many rows of partial sums as there are blocks are left.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/dispatch.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "inverse_rms.cuh"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;

template <unsigned columns>
constexpr unsigned packets_of = columns / (packet * threads);  // a thread's share of a row

// A thread has `mine` packets of a row, `threads` apart.
template <unsigned mine>
struct Row {
  uint4 at[mine];
};
template <unsigned mine>
__device__ __forceinline__ Row<mine> load_row(const uint4* from) {
  Row<mine> row;
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) row.at[k] = from[k * threads + threadIdx.x];
  return row;
}

// Makes the compiler unpack the row again, after a barrier, instead of keeping all of it as fp32 in twice the registers.
template <unsigned mine>
__device__ __forceinline__ void stay_packed(Row<mine>& row) {
#pragma unroll
  for (uint4& each : row.at) asm volatile("" : "+r"(each.x), "+r"(each.y), "+r"(each.z), "+r"(each.w));
}

// Sums for each of a thread's columns.
template <unsigned mine>
struct ColumnSums {
  float of[mine][packet] = {};
};

// The sum over a block for one row after the other: `parts` takes turns, so that one barrier is enough.
__device__ __forceinline__ float row_sum(float own, float* parts) {
  own = device::warp_sum(own);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (unsigned warp = 0; warp < threads / 32; ++warp) sum += parts[warp];
  return sum;
}

// With xhat = x / rms: dx = (dy gain - xhat mean(dy gain xhat)) / rms.
template <unsigned mine>
__device__ __forceinline__ float sum_of_products(const Row<mine>& x, const Row<mine>& dy, const uint4* gains) {
  float sum = 0;
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) {
    float a[packet], b[packet], g[packet];
    shared::unpack(x.at[k], a);
    shared::unpack(dy.at[k], b);
    shared::unpack(gains[k * threads + threadIdx.x], g);
#pragma unroll
    for (int i = 0; i < packet; ++i) sum = fmaf(a[i] * b[i], g[i], sum);
  }
  return sum;
}
__device__ __forceinline__ void add_to_columns(float (&sums)[packet], const float (&x)[packet], const float (&dy)[packet],
                                               float inverse_rms) {
#pragma unroll
  for (int i = 0; i < packet; ++i) sums[i] = fmaf(x[i] * inverse_rms, dy[i], sums[i]);
}
// Stores dx and, where `columns` are given, adds to their sums: packet by packet, so that few of them are unpacked at a time.
template <unsigned mine>
__device__ __forceinline__ void finish_row(uint4* dx, const Row<mine>& x, const Row<mine>& dy, const uint4* gains,
                                           float inverse_rms, float sum, ColumnSums<mine>* columns = nullptr) {
  const float of_x = inverse_rms * inverse_rms * inverse_rms * sum / (mine * threads * packet);
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) {
    float a[packet], b[packet], g[packet];
    shared::unpack(x.at[k], a);
    shared::unpack(dy.at[k], b);
    shared::unpack(gains[k * threads + threadIdx.x], g);
    if (columns != nullptr) add_to_columns(columns->of[k], a, b, inverse_rms);
#pragma unroll
    for (int i = 0; i < packet; ++i) a[i] = b[i] * g[i] * inverse_rms - a[i] * of_x;
    dx[k * threads + threadIdx.x] = shared::pack(a);
  }
}
template <unsigned mine>
__device__ __forceinline__ void store_columns(float* partial, const ColumnSums<mine>& sums) {
  auto* const to = reinterpret_cast<float4*>(partial + std::size_t{blockIdx.x} * mine * threads * packet);
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) {
    const float(&s)[packet] = sums.of[k];
    to[2 * (k * threads + threadIdx.x)] = make_float4(s[0], s[1], s[2], s[3]);
    to[2 * (k * threads + threadIdx.x) + 1] = make_float4(s[4], s[5], s[6], s[7]);
  }
}

struct Tensors {
  const uint4 *x, *dy, *gains;
  const float* inverse_rms;  // of each row, from the forward pass
  uint4* dx;
};

template <unsigned mine>
__global__ __launch_bounds__(threads) void dx_kernel(Tensors tensors) {
  __shared__ float parts[threads / 32];
  const std::size_t row = std::size_t{blockIdx.x} * mine * threads;
  Row<mine> x = load_row<mine>(tensors.x + row), dy = load_row<mine>(tensors.dy + row);
  const float sum = row_sum(sum_of_products(x, dy, tensors.gains), parts);
  finish_row(tensors.dx + row, x, dy, tensors.gains, tensors.inverse_rms[blockIdx.x], sum);
}

// A thread has eight columns, and the block's share of the rows (blockIdx.y), four at a time.
__global__ __launch_bounds__(threads) void column_parts_kernel(Tensors tensors, float* partial, unsigned rows,
                                                               unsigned row_packets) {
  constexpr unsigned in_flight = 4;
  const unsigned column = blockIdx.x * threads + threadIdx.x, first = rows * blockIdx.y / gridDim.y;
  const unsigned end = rows * (blockIdx.y + 1) / gridDim.y;
  float sums[packet] = {};
  for (unsigned row = first; row < end; row += in_flight) {
    uint4 x[in_flight], dy[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (row + k < end) {
        x[k] = tensors.x[std::size_t{row + k} * row_packets + column];
        dy[k] = tensors.dy[std::size_t{row + k} * row_packets + column];
      }
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (row + k < end) {
        float a[packet], b[packet];
        shared::unpack(x[k], a);
        shared::unpack(dy[k], b);
        add_to_columns(sums, a, b, tensors.inverse_rms[row + k]);
      }
  }
  auto* const to = reinterpret_cast<float4*>(partial) + 2 * (std::size_t{blockIdx.y} * row_packets + column);
  to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
  to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

// Adds up the rows of partial sums. A block has 32 columns, each warp every eighth row of them.
__global__ __launch_bounds__(threads) void sum_parts_kernel(const float* partial, float* sums, unsigned rows, unsigned columns) {
  __shared__ float of_warps[threads / 32][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float sum = 0;
#pragma unroll 4
  for (unsigned row = warp; row < rows; row += threads / 32) sum += partial[std::size_t{row} * columns + column];
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (unsigned w = 1; w < threads / 32; ++w) sum += of_warps[w][lane];
  sums[column] = sum;
}

template <unsigned mine>
__global__ __launch_bounds__(threads, mine <= 4 ? 2 : 1) void single_pass_kernel(Tensors tensors, float* partial, unsigned rows) {
  __shared__ float parts[2][threads / 32];
  ColumnSums<mine> sums;
  unsigned turn = 0;
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const std::size_t first = std::size_t{row} * mine * threads;
    Row<mine> x = load_row<mine>(tensors.x + first), dy = load_row<mine>(tensors.dy + first);
    const float inverse_rms = tensors.inverse_rms[row];
    const float sum = row_sum(sum_of_products(x, dy, tensors.gains), parts[turn]);
    stay_packed(x), stay_packed(dy);
    finish_row(tensors.dx + first, x, dy, tensors.gains, inverse_rms, sum, &sums);
  }
  store_columns(partial, sums);
}

class RmsnormBackward final : public Workload {
 public:
  explicit RmsnormBackward(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        most_parts_{std::size_t{8} * multiprocessors()},
        x_{setup.input<bf16>(rows_ * columns_, x(), {.name = "x", .constant = true})},  // as what is saved of it
        dy_{setup.input<bf16>(rows_ * columns_, normal(0, 0.1f), {.name = "dy"})},
        gains_{setup.input<bf16>(columns_, gains(), {.name = "gains"})},
        dx_{setup.output<bf16>(rows_ * columns_, {.name = "dx", .groups = Axis{columns_, rows_}})},
        dgains_{setup.output<float>(columns_, {.name = "gradient of the gains"})},
        inverse_rms_{setup.scratch<float>(rows_, {.name = "inverse root mean squares"})},
        exact_inverse_rms_{setup.scratch<double>(rows_, {.name = "inverse root mean squares of the reference"})},
        partial_{setup.scratch<float>(most_parts_ * columns_, {.name = "partial sums of columns"})} {}

  Cost cost() const override {
    return {.flops = 9 * static_cast<double>(x_.size()),
            .bytes = static_cast<double>(x_.bytes() + dy_.bytes() + gains_.bytes() + dx_.bytes() + dgains_.bytes() +
                                         inverse_rms_.bytes())};
  }
  Cost variant_cost(std::string_view variant) const override {
    Cost all = cost();
    if (variant == "gains_alone") all.bytes -= static_cast<double>(dx_.bytes());
    return all;
  }
  void compute_reference(Launch& launch) override {
    launch(inverse_rms_kernel<double>, {rows(), threads}, x_, exact_inverse_rms_, columns_);
    of_rows_.resize(rows_);
    check(
        cudaMemcpyAsync(of_rows_.data(), exact_inverse_rms_, exact_inverse_rms_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    mean_products_.forget(rows_);
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 1) {
      double sum = 0;
      for (std::size_t row = 0; row < rows_; ++row)
        sum += dy_.host(row * columns_ + i) * x_.host(row * columns_ + i) * of_rows_[row];
      return sum;
    }
    const std::size_t row = i / columns_;
    const double mean_product = mean_products_.of(row, [&] {
      double sum = 0;
      for (std::size_t c = 0; c < columns_; ++c)
        sum += dy_.host(row * columns_ + c) * gains_.host(c) * x_.host(row * columns_ + c);
      return sum / static_cast<double>(columns_);
    });
    const double inverse_rms = of_rows_[row];
    return inverse_rms * (dy_.host(i) * gains_.host(i % columns_) - x_.host(i) * inverse_rms * inverse_rms * mean_product);
  }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(rows_), "tokens/s");
  }

  void save_inverse_rms(Launch& launch) { launch(inverse_rms_kernel<float>, {rows(), threads}, x_, inverse_rms_, columns_); }
  void two_kernels(Launch& launch) {
    dx_alone(launch);
    gains_alone(launch);
  }
  void dx_alone(Launch& launch) {
    compiled([&]<unsigned columns>() { launch(dx_kernel<packets_of<columns>>, {rows(), threads}, tensors()); });
  }
  void gains_alone(Launch& launch) {
    const auto tiles = static_cast<unsigned>(columns_ / (packet * threads));
    const auto parts = static_cast<unsigned>(std::min({rows_, std::size_t{4} * multiprocessors() / tiles + 1, most_parts_}));
    launch(column_parts_kernel, {dim3{tiles, parts}, threads}, tensors(), partial_, rows_, columns_ / packet);
    sum_parts(launch, parts);
  }
  void single_pass(Launch& launch) {
    compiled([&]<unsigned columns>() { persistent(launch, single_pass_kernel<packets_of<columns>>); });
  }

 private:
  // A row of zeros, one a thousand times as large as the others, and columns that are far from zero.
  Pattern x() const {
    const Axis rows{columns_, rows_};
    return normal(0, 1).times(20, drawn(Axis{1, columns_}, 8)).set(0, at(rows, 7)).times(1000, at(rows, 3));
  }
  // Gains of both signs, some zero.
  Pattern gains() const {
    const Axis all{1, columns_};
    return normal(1, 0.2f).times(-1, drawn(all, columns_ / 64)).set(0, drawn(all, 16));
  }
  unsigned rows() const { return static_cast<unsigned>(rows_); }
  Tensors tensors() const {
    return {reinterpret_cast<const uint4*>(x_.get()), reinterpret_cast<const uint4*>(dy_.get()),
            reinterpret_cast<const uint4*>(gains_.get()), inverse_rms_, reinterpret_cast<uint4*>(dx_.get())};
  }
  template <class Run>
  void compiled(const Run& run) const {
    dispatch<2048u, 4096u, 8192u, 16384u>("columns", columns_, run);
  }
  template <class Kernel>
  void persistent(Launch& launch, Kernel* kernel) {
    int of_sm = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_sm, kernel, threads, 0));
    const auto blocks =
        static_cast<unsigned>(std::min({rows_, static_cast<std::size_t>(of_sm) * multiprocessors(), most_parts_}));
    launch(kernel, {blocks, threads}, tensors(), partial_, rows_);
    sum_parts(launch, blocks);
  }
  void sum_parts(Launch& launch, unsigned parts) {
    launch(sum_parts_kernel, {static_cast<unsigned>(columns_ / 32), threads}, partial_, dgains_, parts, columns_);
  }
  std::size_t rows_, columns_, most_parts_;
  Input<bf16> x_, dy_, gains_;
  Output<bf16> dx_;
  Output<float> dgains_;
  Scratch<float> inverse_rms_;
  Scratch<double> exact_inverse_rms_;
  Scratch<float> partial_;
  std::vector<double> of_rows_;  // the reference's inverse root mean squares
  shared::RowCache<double> mean_products_;
};

constexpr KernelLimits in_registers{.local_bytes = 0};
// dx has one rounding to bf16, 1.6e-3; the gradient of the gains is a sum in fp32 of terms of both signs.
constexpr Tolerances tolerances = per_output({within(4e-3), within(1e-5, 1e-4)});
}  // namespace

extern constinit const Pair rmsnorm_backward{
    .teaches = "a block that keeps rows in registers sums along them and along columns in one pass over the data",
    .lesson = "single_pass",
    .make = make<RmsnormBackward>,
    .baseline = {.name = "two_kernels",
                 .run = call<&RmsnormBackward::two_kernels>,
                 .prepare = call<&RmsnormBackward::save_inverse_rms>,
                 .kernels = in_registers},
    .optimized = variants({{.name = "single_pass",
                            .run = call<&RmsnormBackward::single_pass>,
                            .prepare = call<&RmsnormBackward::save_inverse_rms>,
                            .kernels = in_registers}}),
    // The baseline's two halves apart.
    .controls = variants({{.name = "dx_alone",
                           .run = call<&RmsnormBackward::dx_alone>,
                           .prepare = call<&RmsnormBackward::save_inverse_rms>,
                           .outputs = no_outputs},
                          {.name = "gains_alone",
                           .run = call<&RmsnormBackward::gains_alone>,
                           .prepare = call<&RmsnormBackward::save_inverse_rms>,
                           .outputs = no_outputs}}),
    .bound = Bound::memory,
    .tolerance = tolerances,
    .sizes = sizes({{.name = "rows", .full = 16384, .most = 1u << 20},
                    {.name = "columns", .full = 8192, .multiple = 2048, .most = 16384, .scales = false}}),
    .sweep = cases({{"columns_2048", "rows=65536,columns=2048"},
                    {"columns_4096", "rows=32768,columns=4096"},
                    {"columns_16384", "rows=8192,columns=16384"},
                    {"rows_128", "rows=128"},
                    {"rows_65536", "rows=65536"}}),
    .edges = cases({{"one_row", "rows=1"},
                    {"odd_rows", "rows=37,columns=2048"},
                    {"more_rows_than_blocks", "rows=1061,columns=4096"},
                    {"long_rows", "rows=301,columns=16384"}}),
    .reference_samples = 512,
};

}  // namespace aisp::ch13
