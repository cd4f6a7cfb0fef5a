// SPDX-License-Identifier: Apache-2.0
// Seven statistics of each of 24 gradients of 67 MB, as training scripts log them: mean, root mean square, least, largest,
// largest magnitude, zeros, and what is not finite. A library reduction for each reads every tensor seven times. Accumulators of
// all seven fit into a thread's registers, so that one read gives them all, and one launch covers all tensors.
#include <cuda_bf16.h>
#include <aisp/device_attribute.hpp>
#include <aisp/graph.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <cub/device/device_reduce.cuh>
#include <limits>

#include "rows.cuh"
#include "statistics_reference.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256, in_flight = 4;  // in_flight: loads of 16 bytes of a thread
constexpr std::size_t blocks_an_sm = 4;

// Statistics of the finite values, and how many are not.
struct Statistics {
  float sum, squares, least, largest, magnitude;
  unsigned zeros, not_finite;
};
__host__ __device__ constexpr float infinity() { return __builtin_huge_valf(); }
__host__ __device__ constexpr Statistics of_nothing() { return {0, 0, infinity(), -infinity(), 0, 0, 0}; }

struct Add {
  __host__ __device__ Statistics operator()(const Statistics& a, const Statistics& b) const {
    return {a.sum + b.sum,
            a.squares + b.squares,
            fminf(a.least, b.least),
            fmaxf(a.largest, b.largest),
            fmaxf(a.magnitude, b.magnitude),
            a.zeros + b.zeros,
            a.not_finite + b.not_finite};
  }
};
__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < infinity(); }
struct Describe {
  __device__ Statistics operator()(bf16 value) const {
    const float x = __bfloat162float(value);
    if (!is_finite(x)) return {0, 0, infinity(), -infinity(), 0, 0, 1};
    return {x, x * x, x, x, fabsf(x), x == 0 ? 1u : 0u, 0};
  }
};

// The same one by one, as the baseline asks for them.
struct Value {
  __device__ float operator()(bf16 x) const { return is_finite(__bfloat162float(x)) ? __bfloat162float(x) : 0; }
};
struct Square {
  __device__ float operator()(bf16 x) const { return Value{}(x)*Value{}(x); }
};
struct Magnitude {
  __device__ float operator()(bf16 x) const { return fabsf(Value{}(x)); }
};
template <int sign>
struct ValueOr {  // infinity of this sign
  __device__ float operator()(bf16 x) const {
    return is_finite(__bfloat162float(x)) ? __bfloat162float(x) : static_cast<float>(sign) * infinity();
  }
};
struct IsZero {
  __device__ unsigned operator()(bf16 x) const { return __bfloat162float(x) == 0 ? 1 : 0; }
};
struct IsNotFinite {
  __device__ unsigned operator()(bf16 x) const { return is_finite(__bfloat162float(x)) ? 0 : 1; }
};

// The logged values; all 0 where no value is finite.
struct Results {
  float *means, *root_mean_squares, *extremes;  // extremes: least, largest, largest magnitude of each tensor
  unsigned* counts;                             // zeros and what is not finite
};
__device__ void write_results(const Results& results, unsigned tensor, const Statistics& of, std::size_t count) {
  const auto finite = static_cast<float>(count - of.not_finite);
  const bool none = finite == 0;
  results.means[tensor] = none ? 0 : of.sum / finite;
  results.root_mean_squares[tensor] = none ? 0 : sqrtf(of.squares / finite);
  results.extremes[3 * tensor] = none ? 0 : of.least;
  results.extremes[3 * tensor + 1] = none ? 0 : of.largest;
  results.extremes[3 * tensor + 2] = of.magnitude;
  results.counts[2 * tensor] = of.zeros;
  results.counts[2 * tensor + 1] = of.not_finite;
}
__global__ void write_results_kernel(const Statistics* all, Results results, unsigned tensors, std::size_t count) {
  const unsigned tensor = blockIdx.x * blockDim.x + threadIdx.x;
  if (tensor < tensors) write_results(results, tensor, all[tensor], count);
}

// A thread's accumulators. Minimum and maximum are of two values at a time, as they lie in memory.
struct Accumulators {
  float sum = 0, squares = 0;
  unsigned least = 0x7F807F80u, largest = 0xFF80FF80u;  // infinities
  unsigned zeros = 0, not_finite = 0;
};
__device__ __forceinline__ unsigned minimum(unsigned a, unsigned b) {
  asm("min.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}
__device__ __forceinline__ unsigned maximum(unsigned a, unsigned b) {
  asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
}

__device__ __forceinline__ void add_one(Accumulators& seen, unsigned bits) {  // the 16 bits of a value
  const float x = __uint_as_float(bits << 16);
  if (!is_finite(x)) {
    ++seen.not_finite;
    return;
  }
  seen.sum += x;
  seen.squares = fmaf(x, x, seen.squares);
  seen.least = minimum(seen.least, bits | bits << 16);
  seen.largest = maximum(seen.largest, bits | bits << 16);
  seen.zeros += x == 0;
}

// Counts by the bits of two values at a time: without their signs, adding 0x0080 carries into bit 15 of those whose exponent is
// all ones, and adding 0x7FFF into that of those that are not zero.
__device__ __forceinline__ void add_packet(Accumulators& seen, const uint4& loaded) {
  const unsigned words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
  constexpr unsigned no_signs = 0x7FFF7FFFu, signs = 0x80008000u;
  unsigned special = 0, not_zero = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const unsigned magnitudes = words[k] & no_signs;
    special |= magnitudes + 0x00800080u;
    not_zero |= ((magnitudes + no_signs) & signs) >> k;
  }
  if ((special & signs) != 0) {
#pragma unroll
    for (int k = 0; k < packet; ++k) add_one(seen, words[k / 2] >> (k % 2 * 16) & 0xFFFF);
    return;
  }
  float x[packet];
  shared::unpack(loaded, x);
  seen.sum += ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  seen.squares += shared::sum_of_squares(x);
#pragma unroll
  for (const unsigned word : words) {
    seen.least = minimum(seen.least, word);
    seen.largest = maximum(seen.largest, word);
  }
  seen.zeros += packet - __popc(not_zero);
}
__device__ __forceinline__ Statistics finish(const Accumulators& seen) {
  const auto low = [](unsigned two) { return __uint_as_float(two << 16); };
  const auto high = [](unsigned two) { return __uint_as_float(two & 0xFFFF0000u); };
  const float least = fminf(low(seen.least), high(seen.least)), largest = fmaxf(low(seen.largest), high(seen.largest));
  const bool none = least == infinity();
  return {seen.sum, seen.squares, least, largest, none ? 0 : fmaxf(fabsf(least), fabsf(largest)), seen.zeros, seen.not_finite};
}

__device__ __forceinline__ Statistics warp_add(Statistics own) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const auto other = [&](auto value) { return __shfl_xor_sync(device::whole_warp, value, offset); };
    own = Add{}(own, {other(own.sum), other(own.squares), other(own.least), other(own.largest), other(own.magnitude),
                      other(own.zeros), other(own.not_finite)});
  }
  return own;
}
__device__ __forceinline__ Statistics block_add(const Statistics& own, Statistics* parts) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Statistics of_warp = warp_add(own);
  __syncthreads();
  if (lane == 0) parts[warp] = of_warp;
  __syncthreads();
  return warp_add(lane < threads / 32 ? parts[lane] : of_nothing());
}

// `parts` blocks share a tensor; the one that is done last adds up what all of them have found, always in the same order.
__global__ __launch_bounds__(threads) void one_pass_kernel(const bf16* values, std::size_t count, std::size_t pitch,
                                                           unsigned first_tensor, unsigned parts, Statistics* partial,
                                                           unsigned* done, Results results) {
  __shared__ Statistics of_warps[threads / 32];
  __shared__ bool is_last;
  const unsigned tensor = first_tensor + blockIdx.x / parts, part = blockIdx.x % parts;
  const auto* const own = reinterpret_cast<const uint4*>(values + tensor * pitch);
  const auto packets = static_cast<unsigned>(count / packet), step = parts * threads;
  Accumulators seen;
  for (unsigned first = part * threads + threadIdx.x; first < packets; first += in_flight * step) {
    uint4 loaded[in_flight];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * step < packets) loaded[k] = own[first + k * step];
#pragma unroll
    for (unsigned k = 0; k < in_flight; ++k)
      if (first + k * step < packets) add_packet(seen, loaded[k]);
  }
  if (const std::size_t last = std::size_t{packets} * packet + threadIdx.x; part == 0 && last < count)
    add_one(seen, __bfloat16_as_ushort(values[tensor * pitch + last]));
  const Statistics of_block = block_add(finish(seen), of_warps);
  if (threadIdx.x == 0) {
    partial[std::size_t{tensor} * parts + part] = of_block;
    __threadfence();
    is_last = atomicAdd(done + tensor, 1u) == parts - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  Statistics all = of_nothing();
  for (unsigned p = threadIdx.x; p < parts; p += threads) all = Add{}(all, partial[std::size_t{tensor} * parts + p]);
  all = block_add(all, of_warps);
  if (threadIdx.x != 0) return;
  write_results(results, tensor, all, count);
  done[tensor] = 0;
}

class MetricReduction final : public Workload {
 public:
  explicit MetricReduction(Setup& setup)
      : tensors_{setup.size("tensors")},
        count_{setup.size("elements")},
        pitch_{(count_ + 63) / 64 * 64},
        parts_{std::clamp(count_ / (packet * threads * in_flight), std::size_t{1}, blocks_an_sm * multiprocessors())},
        values_{setup.input<bf16>(tensors_ * pitch_, values(), {.name = "tensors"})},
        means_{setup.output<float>(tensors_, {.name = "means"})},
        root_mean_squares_{setup.output<float>(tensors_, {.name = "root mean squares"})},
        extremes_{setup.output<float>(3 * tensors_, {.name = "least, largest, largest magnitude"})},
        counts_{setup.output<unsigned>(2 * tensors_, {.name = "zeros and what is not finite"})},
        statistics_{setup.scratch<Statistics>(tensors_, {.name = "statistics"})},
        partial_{setup.scratch<Statistics>(tensors_ * parts_, {.name = "statistics of blocks"})},
        done_{setup.scratch<unsigned>(tensors_, {.name = "blocks that are done"})},
        space_{setup.scratch<std::byte>(space_bytes, {.name = "space of CUB"})},
        reference_{setup, tensors_} {}

  Cost cost() const override {
    const double elements = static_cast<double>(tensors_) * static_cast<double>(count_);
    return {.flops = 6 * elements, .bytes = sizeof(bf16) * elements};
  }
  void compute_reference(Launch& launch) override { reference_.compute(launch, values_, count_, pitch_); }
  double expected_output(int output, std::size_t i) const override {
    const StatisticsReference::Tensor& of = reference_.of(output < 2 ? i : output == 2 ? i / 3 : i / 2);
    if (output == 3) return i % 2 == 0 ? of.zeros : of.not_finite;
    const double finite = static_cast<double>(count_) - of.not_finite;
    if (finite == 0) return 0;
    if (output < 2) return output == 0 ? of.sum / finite : std::sqrt(of.squares / finite);
    return i % 3 == 0 ? of.least : i % 3 == 1 ? of.largest : std::max(std::abs(of.least), std::abs(of.largest));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("statistics_per_second", 7 * static_cast<double>(tensors_), "statistics/s");
  }

  void reduction_each(Launch& launch) { each(launch.stream); }
  void capture_each(Launch& launch) {
    each(launch.stream);  // a kernel's code is loaded at its first launch: not while a capture is under way
    graph_.capture(launch.stream, [this](cudaStream_t stream) { each(stream); });
  }
  void reductions_in_graph(Launch& launch) { graph_.launch(launch.stream); }
  void cub_struct(Launch& launch) {
    for (std::size_t t = 0; t < tensors_; ++t) reduce(launch.stream, t, statistics_.get() + t, Add{}, Describe{}, of_nothing());
    write(launch.stream);
  }
  void clear_counters(Launch& launch) { check(cudaMemsetAsync(done_, 0, done_.bytes(), launch.stream)); }
  void one_pass_per_tensor(Launch& launch) {
    for (std::size_t t = 0; t < tensors_; ++t) start_pass(launch, t, 1);
  }
  void one_pass(Launch& launch) { start_pass(launch, 0, tensors_); }

 private:
  static constexpr std::size_t space_bytes = std::size_t{1} << 20;

  // The extremes are the first and the last value. One tensor has only zeros, one has only NaN; a 64th of the others is a zero
  // with a sign.
  Pattern values() const {
    const Axis all{1, tensors_ * pitch_}, in_tensor{1, pitch_}, tensors{pitch_, tensors_};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    return normal(0.5f, 1)
        .set(-0.0f, drawn(all, all.count / 64 + 1))
        .set(infinity(), drawn(all, all.count / 65536 + 1))
        .set(100, at(in_tensor, 0))
        .set(-100, at(in_tensor, count_ - 1))
        .set(0, at(tensors, 3))
        .set(nan, at(tensors, 7));
  }
  Results results() const { return {means_, root_mean_squares_, extremes_, counts_}; }
  template <class Result, class Operation, class Transform, class Initial>
  void reduce(cudaStream_t stream, std::size_t tensor, Result* to, Operation operation, Transform transform, Initial initial) {
    std::size_t bytes = space_bytes;
    check(cub::DeviceReduce::TransformReduce(space_.get(), bytes, values_.get() + tensor * pitch_, to, static_cast<int>(count_),
                                             operation, transform, initial, stream));
  }
  void each(cudaStream_t stream) {
    for (std::size_t t = 0; t < tensors_; ++t) {
      Statistics* const to = statistics_.get() + t;
      reduce(stream, t, &to->sum, device::Sum{}, Value{}, 0.0f);
      reduce(stream, t, &to->squares, device::Sum{}, Square{}, 0.0f);
      reduce(stream, t, &to->least, device::Min{}, ValueOr<1>{}, infinity());
      reduce(stream, t, &to->largest, device::Max{}, ValueOr<-1>{}, -infinity());
      reduce(stream, t, &to->magnitude, device::Max{}, Magnitude{}, 0.0f);
      reduce(stream, t, &to->zeros, device::Sum{}, IsZero{}, 0u);
      reduce(stream, t, &to->not_finite, device::Sum{}, IsNotFinite{}, 0u);
    }
    write(stream);
  }
  void write(cudaStream_t stream) {
    launch_kernel(stream, write_results_kernel, {static_cast<unsigned>((tensors_ + threads - 1) / threads), threads},
                  statistics_.get(), results(), tensors_, count_);
  }
  void start_pass(Launch& launch, std::size_t first, std::size_t tensors) {
    launch(one_pass_kernel, {static_cast<unsigned>(tensors * parts_), threads}, values_, count_, pitch_, first, parts_, partial_,
           done_, results());
  }

  std::size_t tensors_, count_, pitch_, parts_;  // parts_: blocks of a tensor
  Input<bf16> values_;
  Output<float> means_, root_mean_squares_, extremes_;
  Output<unsigned> counts_;
  Scratch<Statistics> statistics_, partial_;
  Scratch<unsigned> done_;
  Scratch<std::byte> space_;
  StatisticsReference reference_;
  Graph graph_;
};

}  // namespace

extern constinit const Pair metric_reduction{
    .teaches = "statistics that are logged together are computed together: one read of a tensor gives all seven",
    .lesson = "one_pass_per_tensor",
    .make = make<MetricReduction>,
    .baseline = {.name = "reduction_each", .run = call<&MetricReduction::reduction_each>},
    .optimized = variants({{.name = "one_pass_per_tensor",
                            .run = call<&MetricReduction::one_pass_per_tensor>,
                            .prepare = call<&MetricReduction::clear_counters>,
                            .kernels = {.local_bytes = 0}},
                           {.name = "one_pass",
                            .run = call<&MetricReduction::one_pass>,
                            .prepare = call<&MetricReduction::clear_counters>,
                            .same_bits_as = "one_pass_per_tensor",
                            .kernels = {.local_bytes = 0}}}),
    // The baseline's reductions without the host's launches.
    .controls = variants({{.name = "reductions_in_graph",
                           .run = call<&MetricReduction::reductions_in_graph>,
                           .prepare = call<&MetricReduction::capture_each>,
                           .same_bits_as = "reduction_each"}}),
    // The library's own way to read a tensor once.
    .libraries = variants({{.name = "cub_struct", .run = call<&MetricReduction::cub_struct>}}),
    .bound = Bound::memory,
    // Sums of 33 million in fp32: 250 in a chain, then trees. Extremes and counts have no rounding.
    .tolerance = per_output({within(2e-6), within(1e-6), exact, exact}),
    .start = Start::immediate,
    .sizes = sizes({{.name = "tensors", .full = 24, .scales = false},
                    {.name = "elements", .full = std::uint64_t{4096} * 8192, .most = 1u << 28}}),
    .sweep = cases({{"kib_128", "tensors=2048,elements=65536"},
                    {"mib_1", "tensors=256,elements=524288"},
                    {"mib_8", "tensors=32,elements=4194304"},
                    {"mib_64", "tensors=4,elements=33554432"}}),
    .edges = cases({{"one_element", "tensors=9,elements=1"},
                    {"seven_elements", "tensors=9,elements=7"},
                    {"tails", "tensors=9,elements=100003"}}),
};

}  // namespace aisp::ch13
