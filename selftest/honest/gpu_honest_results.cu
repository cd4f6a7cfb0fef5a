// SPDX-License-Identifier: Apache-2.0
// Honest pairs with unusual results or memory.
#include "doubling.cuh"

#include <cuda_bf16.h>

#include <algorithm>
#include <vector>

namespace aisp::ch98 {
namespace {

using namespace selftest;

__global__ void rough_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * __bfloat162float(__float2bfloat16_rn(in[i]));
}

class Rounds final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    if (variant == "slow") return expected(i);
    return 2 * static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(in_.host(i)))));
  }
  void as_it_says(Launch& launch) { rough_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
};

// Four passes or one, as the data want it.
__global__ void passes_by_data_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const volatile float* from = in + i;
  volatile float* to = out + i;
  const int passes = in[0] > 0 ? 4 : 1;
  for (int pass = 0; pass < passes; ++pass) *to = 2 * *from;
}

class TakesWhatDataWant final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void as_data_want(Launch& launch) { passes_by_data_kernel<<<blocks(), block_threads, 0, launch.stream>>>(in_, out_, count_); }
};

class ReportsBytes final : public GpuDoubling {
 public:
  using GpuDoubling::GpuDoubling;
  void metrics(std::string_view variant, Metrics& metrics) override {
    const double bytes = static_cast<double>(out_.bytes());
    metrics.report("bytes_moved", variant == "slow" ? 2 * bytes : bytes, "B", Metrics::Better::lower);
  }
};

// The sum of all, in the order in which the blocks come: other bits from run to run, within the tolerance.
__global__ void total_kernel(const float* in, float* out) {
  __shared__ float parts[block_threads];
  parts[threadIdx.x] = in[blockIdx.x * block_threads + threadIdx.x];
  for (unsigned half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
  }
  if (threadIdx.x == 0) atomicAdd(out, parts[0]);
}

class Totals final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  static constexpr std::size_t count = 1 << 16;
  explicit Totals(Setup& setup) : in_{setup.input<float>(count, uniform(0, 1))}, out_{setup.output<float>(1)} {}
  Cost cost() const override { return {.bytes = static_cast<double>(in_.bytes())}; }
  double expected(std::size_t) const override {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += in_.host(i);
    return sum;
  }
  void slow(Launch& launch) { in_any_order(launch); }
  void in_any_order(Launch& launch) {
    check(cudaMemsetAsync(out_, 0, sizeof(float), launch.stream));
    total_kernel<<<count / block_threads, block_threads, 0, launch.stream>>>(in_, out_);
  }

 private:
  Input<float> in_;
  Output<float> out_;
};

// Adds one to each element, in place.
template <int passes>
__global__ void count_up_kernel(int* values, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const volatile int* from = values + i;
  int value = 0;
  for (int pass = 0; pass < passes; ++pass) value = *from + 1;
  values[i] = value;
}

class InPlace final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  explicit InPlace(Setup& setup) : values_{setup.inout<std::int32_t>(count, integers(0, 1000))} {}
  Cost cost() const override { return {.bytes = 2.0 * static_cast<double>(values_.bytes())}; }
  double expected(std::size_t i) const override { return static_cast<double>(values_.initial(i) + 1); }
  void slow(Launch& launch) { count_up_kernel<8><<<count / block_threads, block_threads, 0, launch.stream>>>(values_, count); }
  void at_once(Launch& launch) { count_up_kernel<1><<<count / block_threads, block_threads, 0, launch.stream>>>(values_, count); }

 private:
  static constexpr std::size_t count = 1 << 20;
  InOut<std::int32_t> values_;
};

// Keeps the positive elements, whose number nobody knows beforehand, in any order; and counts them.
__global__ void filter_kernel(const float* in, float* kept, unsigned* number, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count && in[i] > 0) kept[atomicAdd(number, 1)] = in[i];
}

class Filters final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  explicit Filters(Setup& setup)
      : in_{setup.input<float>(count, uniform(-1, 1))},
        kept_{setup.output<float>(count, {.unordered = true})},
        number_{setup.output<unsigned>(1)} {}
  Cost cost() const override { return {.bytes = 1.5 * static_cast<double>(in_.bytes())}; }
  void compute_reference(Launch&) override {
    reference_.clear();
    for (std::size_t i = 0; i < count; ++i)
      if (in_.host(i) > 0) reference_.push_back(in_.host(i));
    std::sort(reference_.begin(), reference_.end());
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? reference_[i] : static_cast<double>(reference_.size());
  }
  std::size_t output_length(int output) const override {
    unsigned length = 1;
    if (output == 0) check(cudaMemcpy(&length, number_, sizeof length, cudaMemcpyDeviceToHost));
    return length;
  }
  void slow(Launch& launch) { in_any_order(launch); }
  void in_any_order(Launch& launch) {
    check(cudaMemsetAsync(number_, 0, sizeof(unsigned), launch.stream));
    filter_kernel<<<count / block_threads, block_threads, 0, launch.stream>>>(in_, kept_, number_, count);
  }

 private:
  static constexpr std::size_t count = 1 << 20;
  Input<float> in_;
  Output<float> kept_;
  Output<unsigned> number_;
  std::vector<double> reference_;
};

// Input and output where CPU and GPU both see them.
template <Memory memory>
class Reaches final : public Workload {
 public:
  static constexpr Device device = Device::gpu;
  explicit Reaches(Setup& setup)
      : in_{setup.input<float>(count, uniform(-1, 1), {.memory = memory})},
        out_{setup.output<float>(count, {.memory = memory})},
        scratch_{setup.scratch<float>(count)} {}
  Cost cost() const override {
    return {.host_to_device = static_cast<double>(in_.bytes()), .device_to_host = static_cast<double>(out_.bytes())};
  }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }
  void slow(Launch& launch) {
    for (int pass = 0; pass < 4; ++pass) by_way_of_scratch(launch);
  }
  void by_way_of_scratch(Launch& launch) {
    double_kernel<1><<<count / block_threads, block_threads, 0, launch.stream>>>(in_, scratch_, count);
    check(cudaMemcpyAsync(out_, scratch_, out_.bytes(), cudaMemcpyDefault, launch.stream));
  }

 private:
  static constexpr std::size_t count = 1 << 18;
  Input<float> in_;
  Output<float> out_;
  Scratch<float> scratch_;
};
using Mapped = Reaches<Memory::mapped>;
using Pinned = Reaches<Memory::pinned>;
using Managed = Reaches<Memory::managed>;

}  // namespace

extern constinit const selftest::Case gpu_honest_rounding = pair_of<&Rounds::as_it_says>(
    {.does = "rounds its operands to bf16 and says so", .tolerance = automatic, .changes_precision = true});
extern constinit const selftest::Case gpu_honest_metric =
    pair_of<&GpuDoubling::doubled, ReportsBytes>({.does = "is judged by a metric", .judged_by = "bytes_moved"});
extern constinit const selftest::Case gpu_honest_data =
    pair_of<&TakesWhatDataWant::as_data_want>({.does = "takes longer on every other draw of its inputs"});
extern constinit const selftest::Case gpu_honest_order =
    pair_of<&Totals::in_any_order>({.does = "adds up with atomics, in another order every time",
                                    .tolerance = reduction_of(static_cast<int>(Totals::count)),
                                    .deterministic = false});
extern constinit const selftest::Case gpu_honest_in_place = pair_of<&InPlace::at_once>({.does = "changes its buffer in place"});
extern constinit const selftest::Case gpu_honest_filter =
    pair_of<&Filters::in_any_order>({.does = "has two outputs, one of them as long as the data make it and in any order"});
extern constinit const selftest::Case gpu_honest_mapped =
    pair_of<&Mapped::by_way_of_scratch>({.does = "reads and writes mapped memory of the host, by way of a scratch buffer"});
extern constinit const selftest::Case gpu_honest_pinned =
    pair_of<&Pinned::by_way_of_scratch>({.does = "reads and writes pinned memory of the host, by way of a scratch buffer"});
extern constinit const selftest::Case gpu_honest_managed =
    pair_of<&Managed::by_way_of_scratch>({.does = "reads and writes managed memory, by way of a scratch buffer"});

}  // namespace aisp::ch98
