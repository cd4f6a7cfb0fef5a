// SPDX-License-Identifier: Apache-2.0
// An all-reduce is bound by bytes on the link, so gradients are sent in fewer bits. Cast by kernels of their own, they cross the
// GPU's memory three times more than in fp32. The kernel that sends can convert on the way instead: each GPU rounds and pushes
// the slices of the others, sums its own slice in fp32 and pushes the rounded sum. With 8 bits a block of values has a scale, and
// what rounding loses is kept and added to the next step's gradients (error feedback: Karimireddy et al., ICML 2019).
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "equal_copies.cuh"
#include "gpus.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;
using e4m3 = __nv_fp8_e4m3;

// A block takes 4096 values, a thread four quads of them, so that the lanes of a warp always have neighbouring quads: stores over
// NVLink cover whole sectors. The 128 values of a warp's quads have one
// scale.
constexpr int threads = 256, quad = 4, quads = 4, scaled_values = 32 * quad;
constexpr std::size_t block_values = std::size_t{threads} * quad * quads;
constexpr float largest_e4m3 = 448;
constexpr std::size_t layers = 64;
constexpr int mean_steps = 16;

struct Values {
  float at[quads][quad];
};
__device__ __forceinline__ void add(Values& to, const Values& more, float times = 1) {
#pragma unroll
  for (int q = 0; q < quads; ++q)
#pragma unroll
    for (int k = 0; k < quad; ++k) to.at[q][k] += times * more.at[q][k];
}

// Returns the thread's values of the block that begins at `from`.
template <class T>
__device__ __forceinline__ Values load(const T* from) {
  Values values;
  device::Vector<T, quad> loaded[quads];
#pragma unroll
  for (int q = 0; q < quads; ++q)
    loaded[q] = device::load_once(reinterpret_cast<const device::Vector<T, quad>*>(from) + q * threads + threadIdx.x);
#pragma unroll
  for (int q = 0; q < quads; ++q)
#pragma unroll
    for (int k = 0; k < quad; ++k) values.at[q][k] = static_cast<float>(loaded[q][k]);
  return values;
}
template <class T>
__device__ __forceinline__ void store(T* to, const Values& values) {
#pragma unroll
  for (int q = 0; q < quads; ++q) {
    device::Vector<T, quad> packed;
#pragma unroll
    for (int k = 0; k < quad; ++k) packed[k] = static_cast<T>(values.at[q][k]);
    device::store_streaming(reinterpret_cast<device::Vector<T, quad>*>(to) + q * threads + threadIdx.x, packed);
  }
}

// The factor by which a warp's quads fit E4M3; a power of two, so that it is exact.
__device__ __forceinline__ float scale_of(const float (&values)[quad]) {
  float most = 0;
#pragma unroll
  for (const float value : values) most = fmaxf(most, fabsf(value));
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  int exponent = 0;
  frexpf(most / largest_e4m3, &exponent);
  return most > 0 ? ldexpf(1.0f, exponent) : 1.0f;
}

// How values are sent: as T, and where `scaled` a scale a block before them.
template <class T, bool scaled>
class Wire {
 public:
  T* codes;
  float* scales;

  // `first`: of the block's values.
  __device__ __forceinline__ Values get(std::size_t first) const {
    Values values = load(codes + first);
    if constexpr (scaled) {
#pragma unroll
      for (int q = 0; q < quads; ++q) {
        const float scale = scales[scale_place(first, q)];
#pragma unroll
        for (float& value : values.at[q]) value *= scale;
      }
    }
    return values;
  }
  // Returns what the receiver will read.
  __device__ __forceinline__ Values put(std::size_t first, const Values& values) const {
    Values sent = values;
    float scale[quads];
#pragma unroll
    for (int q = 0; q < quads; ++q) {
      scale[q] = scaled ? scale_of(values.at[q]) : 1.0f;
      if constexpr (scaled) {
        if (threadIdx.x % 32 == 0) scales[scale_place(first, q)] = scale[q];
#pragma unroll
        for (float& value : sent.at[q]) value /= scale[q];
      }
    }
    store(codes + first, sent);
#pragma unroll
    for (int q = 0; q < quads; ++q)
#pragma unroll
      for (float& value : sent.at[q]) value = static_cast<float>(static_cast<T>(value)) * scale[q];
    return sent;
  }

 private:
  __device__ static std::size_t scale_place(std::size_t first, int q) {
    return first / scaled_values + static_cast<unsigned>(q) * (threads / 32) + threadIdx.x / 32;
  }
};

template <class T, bool scaled>
struct Wires {
  Wire<T, scaled> at[most_gpus];
};

// Blocks along y: the other GPUs, whose slices are sent to them. A mailbox has a slice for each sender.
template <class T, bool scaled, bool feedback>
__global__ __launch_bounds__(threads) void send_kernel(const float* __restrict__ gradients, float* __restrict__ error, int me,
                                                       int gpus, std::size_t slice,
                                                       const __grid_constant__ Wires<T, scaled> mailboxes) {
  const int owner = (me + 1 + static_cast<int>(blockIdx.y)) % gpus;
  const std::size_t in_slice = blockIdx.x * block_values;
  const std::size_t first = static_cast<std::size_t>(owner) * slice + in_slice;
  Values values = load(gradients + first);
  if constexpr (feedback) add(values, load(error + first));
  const Values sent = mailboxes.at[owner].put(static_cast<std::size_t>(me) * slice + in_slice, values);
  if constexpr (feedback) {
    add(values, sent, -1);
    store(error + first, values);
  }
}

// Adds to this GPU's part of its slice what the others sent, and pushes the sum to them, rounded as they did. With feedback, what
// the sum loses by that is kept as well.
template <class T, bool scaled, bool feedback>
__global__ __launch_bounds__(threads) void sum_kernel(const float* __restrict__ gradients, float* __restrict__ error,
                                                      Wire<T, scaled> mailbox, int me, int gpus, std::size_t slice,
                                                      const __grid_constant__ Wires<T, scaled> results, float* __restrict__ out) {
  const std::size_t in_slice = blockIdx.x * block_values;
  const std::size_t first = static_cast<std::size_t>(me) * slice + in_slice;
  Values sum = load(gradients + first);
  if constexpr (feedback) add(sum, load(error + first));
  for (int sender = 0; sender < gpus; ++sender)
    if (sender != me) add(sum, mailbox.get(static_cast<std::size_t>(sender) * slice + in_slice));
  Values sent;
  for (int k = 1; k < gpus; ++k) sent = results.at[(me + k) % gpus].put(first, sum);
  store(out + first, sent);
  if constexpr (feedback) {
    add(sum, sent, -1);
    store(error + first, sum);
  }
}

// Blocks along y: the other GPUs, whose slices' sums have arrived.
template <class T, bool scaled>
__global__ __launch_bounds__(threads) void unpack_kernel(Wire<T, scaled> results, int me, int gpus, std::size_t slice,
                                                         float* __restrict__ out) {
  const int owner = (me + 1 + static_cast<int>(blockIdx.y)) % gpus;
  const std::size_t first = static_cast<std::size_t>(owner) * slice + blockIdx.x * block_values;
  store(out + first, results.get(first));
}

template <class From, class To>
__global__ __launch_bounds__(threads) void cast_kernel(const From* __restrict__ from, To* __restrict__ to) {
  const std::size_t first = blockIdx.x * block_values;
  store(to + first, load(from + first));
}

__global__ __launch_bounds__(threads) void add_to_kernel(float* __restrict__ total, const float* __restrict__ out) {
  const std::size_t first = blockIdx.x * block_values;
  Values values = load(total + first);
  add(values, load(out + first));
  store(total + first, values);
}

// Adds to squares[0] the squared distance of total / steps from the exact sums, and to squares[1] theirs from zero.
__global__ __launch_bounds__(threads) void distance_kernel(const float* __restrict__ total, float steps,
                                                           const __grid_constant__ OnGpus<const float> gradients, int gpus,
                                                           double* squares) {
  const std::size_t first = blockIdx.x * block_values;
  double distance = 0, norm = 0;
  for (std::size_t i = first + threadIdx.x; i < first + block_values; i += threads) {
    double exact = 0;
    for (int gpu = 0; gpu < gpus; ++gpu) exact += static_cast<double>(gradients.at[gpu][i]);
    const double off = static_cast<double>(total[i]) / static_cast<double>(steps) - exact;
    distance += off * off;
    norm += exact * exact;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    distance += __shfl_xor_sync(~0u, distance, lanes);
    norm += __shfl_xor_sync(~0u, norm, lanes);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(squares, distance);
  atomicAdd(squares + 1, norm);
}

class GradientCompression final : public Workload {
 public:
  explicit GradientCompression(Setup& setup)
      : gpus_{setup},
        count_{setup.scaled(std::size_t{1} << 27, block_values * static_cast<std::size_t>(gpus_.count()))},
        total_{setup.scratch<float>(count_, {.name = "sum of steps"})},
        squares_{setup.scratch<double>(2, {.name = "squared errors"})},
        nccl_{setup, gpus_.ordinals(), gpus_.count()} {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const std::string gradients = "gradients of GPU " + std::to_string(gpu), sum = "sum on GPU " + std::to_string(gpu);
      // Deviations from 1e-3 to 1e3, since layers differ in the size of their gradients.
      gradients_.add(setup.input<float>(count_, normal(0, 1).times(1e-3f, 1e3f, all_of(Axis{count_ / layers, layers})),
                                        {.name = gradients.c_str(), .device = gpu}));
      sums_.add(setup.output<float>(count_, {.name = sum.c_str(), .device = gpu, .groups = Axis{count_ / layers, layers}}));
      errors_.add(setup.scratch<float>(count_, {.name = "error feedback", .device = gpu}));
      mailboxes_.add(setup.scratch<float>(count_, {.name = "mailbox", .device = gpu}));
      results_.add(setup.scratch<bf16>(count_, {.name = "rounded sums", .device = gpu}));
      scales_.add(setup.scratch<float>(2 * count_ / scaled_values, {.name = "scales", .device = gpu}));
      untimed_.push_back(setup.stream(gpu));
    }
  }

  Cost cost() const override { return cost_of(sizeof(float), 0); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant.starts_with("bf16")) return cost_of(sizeof(bf16), 0);
    if (variant == "fp8_two_shot") return cost_of(sizeof(e4m3), 0);
    if (variant == "fp8_feedback") return cost_of(sizeof(e4m3), 2 * sizeof(float));
    return cost();
  }
  double expected_output(int, std::size_t index) const override {
    double sum = 0;
    for (const Input<float>& each : gradients_) sum += each.host(index);
    return sum;
  }

  // The mean of several steps of the same gradients: what feedback is for.
  void validate(std::string_view variant) override {
    demand_equal_copies(gpus_, sums_.pointers<float>(), sums_[0].bytes());
    if (!variant.starts_with("fp8")) return;
    const bool feedback = variant == "fp8_feedback";
    const Streams streams{untimed_};
    forget_errors(streams);
    check(cudaMemsetAsync(total_, 0, total_.bytes(), streams[0]));
    for (int step = 0; step < mean_steps; ++step) {
      if (feedback) two_shot<e4m3, true, true>(streams);
      else two_shot<e4m3, true, false>(streams);
      launch_kernel(streams[0], add_to_kernel, {blocks(count_), threads}, total_.get(), sums_[0].get());
      gpus_.meet(streams);
    }
    check(cudaMemsetAsync(squares_, 0, squares_.bytes(), streams[0]));
    launch_kernel(streams[0], distance_kernel, {blocks(count_), threads}, total_.get(), static_cast<float>(mean_steps),
                  gradients_.pointers<const float>(), gpus_.count(), squares_.get());
    double squares[2]{};
    check(cudaMemcpyAsync(squares, squares_, sizeof squares, cudaMemcpyDeviceToHost, streams[0]));
    check(cudaStreamSynchronize(streams[0]));
    const double error = mean_error_[feedback] = std::sqrt(squares[0] / squares[1]);
    if (feedback && !(error <= 1e-2))
      throw std::runtime_error{"the mean of 16 steps is off by " + std::to_string(error) + ", 0.01 may be"};
  }

  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("reduced", static_cast<double>(sums_[0].bytes()) / 1e9, "GB/s");
    if (variant.starts_with("fp8"))
      metrics.report("error_of_16_steps", 100 * mean_error_[variant == "fp8_feedback"], "%", Metrics::Better::lower);
  }

  void nccl_fp32(Launch& launch) {
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu)
        nccl_->all_reduce(gpu, gradients_[gpu], sums_[gpu], count_, nccl::Type::fp32, launch.streams[gpu]);
    });
  }
  void bf16_allreduce(Launch& launch) { cast_reduce_cast<bf16>(launch, nccl::Type::bf16); }
  void fp32_two_shot(Launch& launch) { two_shot<float, false, false>(launch.streams); }
  void bf16_two_shot(Launch& launch) { two_shot<bf16, false, false>(launch.streams); }
  void fp8_two_shot(Launch& launch) { two_shot<e4m3, true, false>(launch.streams); }
  void fp8_feedback(Launch& launch) { two_shot<e4m3, true, true>(launch.streams); }
  void forget(Launch& launch) { forget_errors(launch.streams); }

 private:
  static unsigned blocks(std::size_t values) { return static_cast<unsigned>(values / block_values); }

  // Each GPU sends its part of the others' slices, and the sum of its own slice to the others.
  Cost cost_of(double sent_bytes, double feedback_bytes) const {
    const double count = static_cast<double>(count_), gpus = gpus_.count();
    return {.bytes = count * (2 * sizeof(float) + feedback_bytes), .peer_bytes = 2 * count * sent_bytes * (gpus - 1) / gpus};
  }

  void forget_errors(Streams streams) const {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      check(cudaMemsetAsync(errors_[gpu], 0, errors_[gpu].bytes(), streams[gpu]));
    }
    gpus_.meet(streams);
  }

  template <class T>
  void cast_reduce_cast(Launch& launch, nccl::Type type) {
    const auto sent = [&](int gpu) { return reinterpret_cast<T*>(mailboxes_[gpu].get()); };
    const auto received = [&](int gpu) { return reinterpret_cast<T*>(results_[gpu].get()); };
    const Grid grid{blocks(count_), threads};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gpus_.launch(gpu, launch.streams[gpu], cast_kernel<float, T>, grid, gradients_[gpu], sent(gpu));
    nccl_->together([&] {
      for (int gpu = 0; gpu < gpus_.count(); ++gpu)
        nccl_->all_reduce(gpu, sent(gpu), received(gpu), count_, type, launch.streams[gpu]);
    });
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gpus_.launch(gpu, launch.streams[gpu], cast_kernel<T, float>, grid, received(gpu), sums_[gpu].get());
  }

  template <class T, bool scaled, bool feedback>
  void two_shot(Streams streams) const {
    constexpr bool packed = !std::is_same_v<T, float>;
    Wires<T, scaled> mailboxes{}, results{};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      mailboxes.at[gpu] = {reinterpret_cast<T*>(mailboxes_[gpu].get()), scales_[gpu].get()};
      results.at[gpu] = {packed ? reinterpret_cast<T*>(results_[gpu].get()) : reinterpret_cast<T*>(sums_[gpu].get()),
                         scales_[gpu].get() + count_ / scaled_values};
    }
    const int gpus = gpus_.count();
    const std::size_t slice = count_ / static_cast<std::size_t>(gpus);
    const Grid others{{blocks(slice), static_cast<unsigned>(gpus - 1)}, threads};
    for (int gpu = 0; gpu < gpus; ++gpu)
      gpus_.launch(gpu, streams[gpu], send_kernel<T, scaled, feedback>, others, gradients_[gpu], errors_[gpu].get(), gpu, gpus,
                   slice, mailboxes);
    gpus_.meet(streams);
    for (int gpu = 0; gpu < gpus; ++gpu)
      gpus_.launch(gpu, streams[gpu], sum_kernel<T, scaled, feedback>, {blocks(slice), threads}, gradients_[gpu],
                   errors_[gpu].get(), mailboxes.at[gpu], gpu, gpus, slice, results, sums_[gpu].get());
    gpus_.meet(streams);
    if constexpr (packed)
      for (int gpu = 0; gpu < gpus; ++gpu)
        gpus_.launch(gpu, streams[gpu], unpack_kernel<T, scaled>, others, results.at[gpu], gpu, gpus, slice, sums_[gpu].get());
  }

  Gpus gpus_;
  std::size_t count_;
  Scratch<float> total_;
  Scratch<double> squares_;
  Each<Input<float>> gradients_;
  Each<Output<float>> sums_;
  Each<Scratch<float>> errors_, mailboxes_, scales_;
  Each<Scratch<bf16>> results_;
  std::vector<cudaStream_t> untimed_;
  double mean_error_[2]{};  // without feedback and with it
  Opened<Nccl> nccl_;
};

// One rounding to bf16 is 1.6e-3 and the sum has another; NCCL rounds each partial sum. One to E4M3 is 2.5e-2 and there are two.
constexpr Tolerance two_roundings_to_bf16 = within(5e-3), two_roundings_to_e4m3 = within(5e-2);

}  // namespace

extern constinit const Pair gradient_compression{
    .teaches = "an all-reduce is bound by bytes on the link: convert in the kernel that sends, not in one before it",
    .lesson = "bf16_two_shot",
    .make = make<GradientCompression>,
    .baseline = {.name = "nccl_fp32", .run = call<&GradientCompression::nccl_fp32>},
    .optimized = variants({{.name = "bf16_allreduce",
                            .run = call<&GradientCompression::bf16_allreduce>,
                            .changes_precision = true,
                            .tolerance = two_roundings_to_bf16},
                           {.name = "fp32_two_shot", .run = call<&GradientCompression::fp32_two_shot>, .gains_over = "nccl_fp32"},
                           {.name = "bf16_two_shot",
                            .run = call<&GradientCompression::bf16_two_shot>,
                            .changes_precision = true,
                            .tolerance = two_roundings_to_bf16},
                           {.name = "fp8_two_shot",
                            .run = call<&GradientCompression::fp8_two_shot>,
                            .changes_precision = true,
                            .tolerance = two_roundings_to_e4m3},
                           {.name = "fp8_feedback",
                            .run = call<&GradientCompression::fp8_feedback>,
                            .reset = call<&GradientCompression::forget>,
                            .changes_precision = true,
                            .tolerance = two_roundings_to_e4m3}}),
    .bound = Bound::transfer,
    .tolerance = within(1e-6),  // a few roundings to fp32
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::nccl}},
};

}  // namespace aisp::ch04
