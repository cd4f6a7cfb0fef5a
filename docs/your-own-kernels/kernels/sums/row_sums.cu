// SPDX-License-Identifier: Apache-2.0
// The sums of a matrix's rows. With a thread a row, the threads of a warp read addresses that lie a row apart, 32 sectors a load.
// With a warp a row they read neighbours, four sectors a load, and add up through registers.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

namespace aisp::sums {
namespace {

constexpr int threads = 256, warp = 32;
constexpr int columns = 1024;

__global__ void thread_a_row_kernel(const float* in, float* out) {
  const std::size_t row = std::size_t{blockIdx.x} * threads + threadIdx.x;
  float sum = 0;
  for (int c = 0; c < columns; ++c) sum += in[row * columns + c];
  out[row] = sum;
}

__global__ void warp_a_row_kernel(const float* in, float* out) {
  const std::size_t row = (std::size_t{blockIdx.x} * threads + threadIdx.x) / warp;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) % warp; c < columns; c += warp) sum += in[row * columns + c];
  sum = device::warp_sum(sum);
  if (threadIdx.x % warp == 0) out[row] = sum;
}

class RowSums final : public Workload {
 public:
  explicit RowSums(Setup& setup)
      : rows_{setup.scaled(std::size_t{1} << 16, threads)},
        in_{setup.input<float>(rows_ * columns, uniform(0, 1))},
        out_{setup.output<float>(rows_)} {}

  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += in_.host(row * columns + c);
    return sum;
  }

  void thread_a_row(Launch& launch) { launch(thread_a_row_kernel, {static_cast<unsigned>(rows_ / threads), threads}, in_, out_); }
  void warp_a_row(Launch& launch) {
    launch(warp_a_row_kernel, {static_cast<unsigned>(rows_ / (threads / warp)), threads}, in_, out_);
  }

 private:
  std::size_t rows_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair row_sums{
    .teaches = "neighbouring threads should read neighbouring addresses, so a row belongs to a warp and not to a thread",
    .make = make<RowSums>,
    .baseline = {.name = "thread_a_row", .run = call<&RowSums::thread_a_row>},
    .optimized = variants({{.name = "warp_a_row", .run = call<&RowSums::warp_a_row>}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(columns),
};

}  // namespace aisp::sums
