// SPDX-License-Identifier: Apache-2.0
// The step between two layers of a transformer: the residual is added, and the sum is normalized by its root mean square. As two
// operators, the second reads what the first has just written, and a norm that reads its row twice relies on the cache for the
// second time. With the row in registers each value is moved once, and nothing else of 1.07 GB is left to save.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "cudnn_rows.hpp"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned columns = 8192, row_packets = columns / packet;
constexpr unsigned threads = 256, mine = row_packets / threads;  // mine: packets of a row that a thread has
constexpr float epsilon = 1e-6f;

// The packets of a thread, 16 bytes each, in registers.
struct Row {
  uint4 at[mine];
};
__device__ __forceinline__ Row load_row(const uint4* from) {
  Row row;
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) row.at[k] = from[k * threads + threadIdx.x];
  return row;
}
__device__ __forceinline__ void store_row(uint4* to, const Row& row) {
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) to[k * threads + threadIdx.x] = row.at[k];
}

__device__ __forceinline__ uint4 add(const uint4& a, const uint4& b) {
  float x[packet], y[packet];
  shared::unpack(a, x);
  shared::unpack(b, y);
#pragma unroll
  for (int i = 0; i < packet; ++i) x[i] += y[i];
  return shared::pack(x);
}
__device__ __forceinline__ uint4 scale(const uint4& h, float factor, const uint4& gain) {
  float x[packet], g[packet];
  shared::unpack(h, x);
  shared::unpack(gain, g);
#pragma unroll
  for (int i = 0; i < packet; ++i) x[i] = x[i] * factor * g[i];
  return shared::pack(x);
}
__device__ __forceinline__ float sum_of_squares(const uint4& h) {
  float x[packet];
  shared::unpack(h, x);
  return shared::sum_of_squares(x);
}
__device__ __forceinline__ float sum_of_squares(const Row& h) {
  float sum = 0;
#pragma unroll
  for (const uint4& each : h.at) sum += sum_of_squares(each);
  return sum;
}
__device__ __forceinline__ float factor_of(float sum) { return rsqrtf(sum / columns + epsilon); }
__device__ __forceinline__ Row sum_of(const Row& a, const Row& b) {
  Row sum;
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) sum.at[k] = add(a.at[k], b.at[k]);
  return sum;
}
__device__ __forceinline__ Row scaled(const Row& h, float factor, const Row& gains) {
  Row result;
#pragma unroll
  for (unsigned k = 0; k < mine; ++k) result.at[k] = scale(h.at[k], factor, gains.at[k]);
  return result;
}

__global__ __launch_bounds__(threads) void add_kernel(const uint4* __restrict__ x, const uint4* __restrict__ residual,
                                                      uint4* __restrict__ h) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  h[i] = add(x[i], residual[i]);
}

__global__ __launch_bounds__(threads) void norm_twice_read_kernel(const uint4* __restrict__ h, const uint4* __restrict__ gains,
                                                                  uint4* __restrict__ y) {
  __shared__ float sums[threads / 32];
  const std::size_t row = std::size_t{blockIdx.x} * row_packets;
  float sum = 0;
  for (unsigned i = threadIdx.x; i < row_packets; i += threads) sum += sum_of_squares(h[row + i]);
  const float factor = factor_of(device::block_sum(sum, sums));
  for (unsigned i = threadIdx.x; i < row_packets; i += threads) y[row + i] = scale(h[row + i], factor, gains[i]);
}

__global__ __launch_bounds__(threads) void norm_kernel(const uint4* __restrict__ h, const uint4* __restrict__ gains,
                                                       uint4* __restrict__ y) {
  __shared__ float sums[threads / 32];
  const std::size_t row = std::size_t{blockIdx.x} * row_packets;
  const Row own = load_row(h + row);
  const float factor = factor_of(device::block_sum(sum_of_squares(own), sums));
  store_row(y + row, scaled(own, factor, load_row(gains)));
}

__global__ __launch_bounds__(threads) void add_and_norm_kernel(const uint4* __restrict__ x, const uint4* __restrict__ residual,
                                                               const uint4* __restrict__ gains, uint4* __restrict__ h,
                                                               uint4* __restrict__ y) {
  __shared__ float sums[threads / 32];
  const std::size_t row = std::size_t{blockIdx.x} * row_packets;
  const Row own = sum_of(load_row(x + row), load_row(residual + row));
  store_row(h + row, own);
  const float factor = factor_of(device::block_sum(sum_of_squares(own), sums));
  store_row(y + row, scaled(own, factor, load_row(gains)));
}

// A block takes one row after the other, and asks for the next one before it waits for the sum of this one.
__global__ __launch_bounds__(threads, 2) void add_and_norm_rows_kernel(const uint4* __restrict__ x,
                                                                       const uint4* __restrict__ residual,
                                                                       const uint4* __restrict__ gains, uint4* __restrict__ h,
                                                                       uint4* __restrict__ y, unsigned rows) {
  __shared__ float sums[threads / 32];
  const Row own_gains = load_row(gains);
  std::size_t row = std::size_t{blockIdx.x} * row_packets;
  const std::size_t step = std::size_t{gridDim.x} * row_packets, end = std::size_t{rows} * row_packets;
  if (row >= end) return;
  Row next_x = load_row(x + row), next_residual = load_row(residual + row);
  for (; row < end; row += step) {
    const Row own = sum_of(next_x, next_residual);
    if (row + step < end) {
      next_x = load_row(x + row + step);
      next_residual = load_row(residual + row + step);
    }
    store_row(h + row, own);
    const float factor = factor_of(device::block_sum(sum_of_squares(own), sums));
    store_row(y + row, scaled(own, factor, own_gains));
  }
}

class ResidualRmsnorm final : public Workload {
 public:
  explicit ResidualRmsnorm(Setup& setup)
      : rows_{setup.size("rows")},
        x_{setup.input<bf16>(rows_ * columns, normal(0, 1).times(20, drawn(Axis{1, columns}, 8)).set(0, zero_rows()),
                             {.name = "x"})},
        residual_{setup.input<bf16>(rows_ * columns, normal(0, 1).set(0, zero_rows()), {.name = "residual"})},
        gains_{setup.input<bf16>(columns, normal(1, 0.1f), {.name = "gains"})},
        h_{setup.output<bf16>(rows_ * columns, {.name = "sum"})},
        y_{setup.output<bf16>(rows_ * columns, {.name = "normalized sum"})},
        cudnn_{setup, rows_, std::size_t{columns}, double{epsilon}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 5 * static_cast<double>(h_.size()),
            .bytes = static_cast<double>(x_.bytes() + residual_.bytes() + gains_.bytes() + h_.bytes() + y_.bytes())};
  }
  void compute_reference(Launch&) override { mean_squares_.forget(rows_); }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return sum_at(i);
    const std::size_t row = i / columns;
    const double mean_square = mean_squares_.of(row, [&] {
      double sum = 0;
      for (std::size_t k = row * columns; k < (row + 1) * columns; ++k) sum += sum_at(k) * sum_at(k);
      return sum / columns;
    });
    return sum_at(i) / std::sqrt(mean_square + double{epsilon}) * gains_.host(i % columns);
  }

  void two_operators(Launch& launch) {
    add(launch);
    launch(norm_twice_read_kernel, {rows(), threads}, packets(h_.get()), packets(gains_.get()), packets(y_.get()));
  }
  void norm_in_registers(Launch& launch) {
    add(launch);
    launch(norm_kernel, {rows(), threads}, packets(h_.get()), packets(gains_.get()), packets(y_.get()));
  }
  void row_in_registers(Launch& launch) {
    launch(add_and_norm_kernel, {rows(), threads}, packets(x_.get()), packets(residual_.get()), packets(gains_.get()),
           packets(h_.get()), packets(y_.get()));
  }
  void row_in_registers_persistent(Launch& launch) {
    int of_sm = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_sm, add_and_norm_rows_kernel, threads, 0));
    const unsigned blocks = std::min(rows(), multiprocessors() * static_cast<unsigned>(of_sm));
    launch(add_and_norm_rows_kernel, {blocks, threads}, packets(x_.get()), packets(residual_.get()), packets(gains_.get()),
           packets(h_.get()), packets(y_.get()), rows_);
  }
  void tune(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    cudnn_->tune(launch.stream, h_.get(), gains_.get(), y_.get());
  }
  void add_cudnn_rms_norm(Launch& launch) {
    add(launch);
    cudnn_->run(launch.stream, h_.get(), gains_.get(), y_.get());
  }

 private:
  unsigned rows() const { return static_cast<unsigned>(rows_); }
  Places zero_rows() const { return at(Axis{columns, rows_}, 7, 2); }
  static const uint4* packets(const bf16* of) { return reinterpret_cast<const uint4*>(of); }
  static uint4* packets(bf16* of) { return reinterpret_cast<uint4*>(of); }
  // As bf16 has it: the norm is of what is stored.
  double sum_at(std::size_t i) const {
    const float sum = static_cast<float>(x_.host(i)) + static_cast<float>(residual_.host(i));
    return static_cast<double>(__bfloat162float(__float2bfloat16_rn(sum)));
  }
  void add(Launch& launch) {
    launch(add_kernel, {rows() * mine, threads}, packets(x_.get()), packets(residual_.get()), packets(h_.get()));
  }

  std::size_t rows_;
  Input<bf16> x_, residual_, gains_;
  Output<bf16> h_, y_;
  Opened<CudnnRmsNorm> cudnn_;
  bool reproducible_;
  shared::RowCache<double> mean_squares_;
};

}  // namespace

extern constinit const Pair residual_rmsnorm{
    .teaches = "fusing an addition with the norm after it saves what the norm would read again",
    .lesson = "row_in_registers",
    .make = make<ResidualRmsnorm>,
    .baseline = {.name = "two_operators", .run = call<&ResidualRmsnorm::two_operators>},
    .optimized =
        variants({{.name = "norm_in_registers", .run = call<&ResidualRmsnorm::norm_in_registers>, .kernels = {.local_bytes = 0}},
                  {.name = "row_in_registers", .run = call<&ResidualRmsnorm::row_in_registers>, .kernels = {.local_bytes = 0}},
                  {.name = "row_in_registers_persistent",
                   .run = call<&ResidualRmsnorm::row_in_registers_persistent>,
                   .same_bits_as = "row_in_registers",
                   .kernels = {.registers = 128, .local_bytes = 0}}}),
    .libraries = variants({{.name = "add_cudnn_rms_norm",
                            .run = call<&ResidualRmsnorm::add_cudnn_rms_norm>,
                            .prepare = call<&ResidualRmsnorm::tune>,
                            .needs = {.libraries = {Library::cudnn}}}}),
    .bound = Bound::memory,
    // The sum is one rounding of what IEEE 754 defines; the norm adds one rounding to bf16, 1.6e-3.
    .tolerance = per_output({exact, within(4e-3)}),
    .sizes = sizes({{.name = "rows", .full = 16384}}),
    .edges = cases({{"one_row", "rows=1"}, {"odd_rows", "rows=37"}, {"more_rows_than_blocks", "rows=1061"}}),
};

}  // namespace aisp::ch09
