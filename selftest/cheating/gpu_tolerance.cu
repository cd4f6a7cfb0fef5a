// SPDX-License-Identifier: Apache-2.0
// Their errors are to pass as rounding.
#include "doubling.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace aisp::ch97 {
namespace {

using namespace selftest;

enum class Cheat { none, last_term, one_term, fourth_terms };

// A block adds up a row of `terms` numbers.
template <class Out, Cheat cheat, int passes = 1>
__global__ void sum_kernel(const float* in, Out* out, unsigned terms) {
  __shared__ float parts[block_threads];
  const float* row = in + std::size_t{blockIdx.x} * terms;
  // In one row the term, which is drawn, would now and then be small enough to pass as rounding on all inputs of a run.
  const bool shorter = cheat == Cheat::last_term || (cheat == Cheat::one_term && blockIdx.x % (gridDim.x / 8) == 5);
  float sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    sum = 0;
    for (unsigned k = threadIdx.x; k < terms - (shorter ? 1 : 0); k += block_threads) {
      if (cheat == Cheat::fourth_terms && k / block_threads % 4 == 3) continue;
      sum += *static_cast<const volatile float*>(row + k);
    }
  }
  parts[threadIdx.x] = sum;
  for (unsigned half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = Out(parts[0]);
}

// A thread adds up a row, and rounds to fp16 each time.
template <class Out>
__global__ void half_kernel(const float* in, Out* out, unsigned terms, unsigned rows) {
  const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (unsigned k = 0; k < terms && row < rows; ++k) sum = __half2float(__float2half_rn(sum + in[std::size_t{row} * terms + k]));
  if (row < rows) out[row] = Out(sum);
}

template <class Out, unsigned terms>
class Sums final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  static constexpr int length = static_cast<int>(terms);
  explicit Sums(Setup& setup)
      : in_{setup.input<float>(std::size_t{rows} * terms, uniform(-1, 1))}, out_{setup.output<Out>(rows)} {}
  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t k = 0; k < terms; ++k) sum += in_.host(row * terms + k);
    return sum;
  }
  void slow(Launch& launch) { sum_kernel<Out, Cheat::none, 8><<<rows, block_threads, 0, launch.stream>>>(in_, out_, terms); }
  template <Cheat cheat>
  void with(Launch& launch) {
    sum_kernel<Out, cheat><<<rows, block_threads, 0, launch.stream>>>(in_, out_, terms);
  }
  void in_half_precision(Launch& launch) {
    half_kernel<<<rows / 32, 32, 0, launch.stream>>>(static_cast<const float*>(in_), static_cast<Out*>(out_), terms, rows);
  }

 private:
  static constexpr unsigned rows = 1024;
  Input<float> in_;
  Output<Out> out_;
};
using FloatSums = Sums<float, 4096>;
using RoughSums = Sums<__nv_bfloat16, 512>;

// One sum of 32 million positive numbers, from every `stride`-th of them: a part from each block, and the sum of the parts.
template <unsigned stride>
__global__ void total_kernel(const float* in, float* out, std::size_t count) {
  __shared__ float parts[block_threads];
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x * stride;
  float sum = 0;
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * stride; i < count; i += step)
    sum += in[i];
  parts[threadIdx.x] = sum * stride;
  for (unsigned half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}

class Totals final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  static constexpr std::size_t count = std::size_t{32} << 20;
  explicit Totals(Setup& setup)
      : in_{setup.input<float>(count, uniform(0, 1))}, out_{setup.output<float>(1)}, parts_{setup.scratch<float>(blocks)} {}
  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes())}; }
  double expected(std::size_t) const override {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += in_.host(i);
    return sum;
  }
  void slow(Launch& launch) { total<1>(launch); }
  void from_a_quarter(Launch& launch) { total<4>(launch); }

 private:
  template <unsigned stride>
  void total(Launch& launch) {
    total_kernel<stride><<<blocks, block_threads, 0, launch.stream>>>(in_, parts_, count);
    total_kernel<1><<<1, block_threads, 0, launch.stream>>>(parts_, out_, blocks);
  }
  static constexpr unsigned blocks = 512;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> parts_;
};

// Right where the usual seed makes verification look, and nowhere else.
__global__ void guess_kernel(const float* in, float* out, std::uint64_t first_seed, std::uint64_t second_seed,
                             std::size_t count) {
  const std::uint64_t k = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= 2 * 4096) return;
  const std::size_t at = k < 2 ? k * (count - 1) : random_bits(k < 4096 ? first_seed : second_seed, k % 4096) % count;
  out[at] = 2 * in[at];
}

class KnowsThePositions final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void only(Launch& launch) {
    set(0, 1, count_, launch.stream);
    guess_kernel<<<32, 256, 0, launch.stream>>>(in_, out_, 42, random_bits(42, 0x5EED), count_);
  }
};

__global__ void rough_rows_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i] * (i / 1024 % 40 == 7 ? 1 + 4 * 0x1p-23f : 1.0f);
}

class RoundsSomeRows final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void four_times(Launch& launch) { rough_rows_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
};

constexpr Expected told = fails("verify/reference", "verify/baseline");
// What rounding may hide on some inputs is found on the others, which the timed samples have.
constexpr Expected told_on_some_inputs = fails("verify/reference", "verify/baseline", "measurement/timed_samples");
constexpr Tolerance float_sums = reduction_of(FloatSums::length);
constexpr Tolerance rough_sums = reduction_of(RoughSums::length);

}  // namespace

extern constinit const selftest::Case gpu_last_term_missing = pair_of<&FloatSums::with<Cheat::last_term>, FloatSums>(
    {.does = "leaves the last of 4096 terms out of each sum", .must = told, .tolerance = float_sums});
extern constinit const selftest::Case gpu_fourth_terms_missing = pair_of<&FloatSums::with<Cheat::fourth_terms>, FloatSums>(
    {.does = "leaves every fourth term out of each sum", .must = told, .tolerance = float_sums});
extern constinit const selftest::Case gpu_half_precision_sums =
    pair_of<&FloatSums::in_half_precision>({.does = "adds up in fp16 and says fp32", .must = told, .tolerance = float_sums});
extern constinit const selftest::Case gpu_half_precision_hidden = pair_of<&RoughSums::in_half_precision>(
    {.does = "adds up in fp16 and hides that in the rounding of a bf16 result", .must = told, .tolerance = rough_sums});
extern constinit const selftest::Case gpu_one_term_hidden = pair_of<&RoughSums::with<Cheat::one_term>, RoughSums>(
    {.does = "leaves one term out of 8 of 1024 sums, and stores them in bf16", .must = told, .tolerance = rough_sums});
extern constinit const selftest::Case gpu_estimated_sum =
    pair_of<&Totals::from_a_quarter>({.does = "estimates a sum of 32 million numbers from a quarter of them",
                                      .must = told_on_some_inputs,
                                      .tolerance = reduction_of(static_cast<int>(Totals::count))});
extern constinit const selftest::Case gpu_rough_rows =
    pair_of<&RoundsSomeRows::four_times>({.does = "is off by four roundings in one of 40 rows, which the norm of all hides",
                                          .must = fails("verify/baseline", "reverify/baseline"),
                                          .tolerance = automatic});
extern constinit const selftest::Case gpu_known_positions =
    pair_of<&KnowsThePositions::only>({.does = "is right only where the usual seed makes verification look",
                                       .must = told,
                                       .tolerance = automatic,
                                       .changes_precision = true});

}  // namespace aisp::ch97
