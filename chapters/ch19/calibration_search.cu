// SPDX-License-Identifier: Apache-2.0
// Finds where to clip activations for INT8: the clip with the least mean squared error of 64. Observers quantize the tensor once
// for each of them, which is 64 passes over memory. But bf16 has 32768 magnitudes and no more: how often each occurs says all
// that any candidate's error depends on, exactly, and is counted in one pass. Where the counters are then decides: in L2 all SMs
// wait for the same few, in shared memory 128 KiB hold all of them for each SM.
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/pair.hpp>

#include <cub/device/device_histogram.cuh>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "rows.cuh"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
constexpr unsigned threads = 256, wide_threads = 1024;
constexpr unsigned magnitudes = 1u << 15, all_codes = 1u << 16;
constexpr unsigned blocks_per_sm = 8;  // of 256 threads
constexpr unsigned together = 16;      // candidates whose sums a thread has in registers
constexpr unsigned run_packets = 4;    // whose squares are added up in fp32
constexpr float largest_code = 127, largest_clip = 256;

struct Steps {
  float of[together];
};
__host__ __device__ inline float step_of(unsigned candidate, unsigned candidates) {
  return largest_clip * static_cast<float>(candidate + 1) / static_cast<float>(candidates) / largest_code;
}

// Returns the loss when x becomes a whole number of steps, 127 at most, and is multiplied by the step again. Both signs lose the
// same; next to 2^23 the numbers of fp32 are 1 apart, and adding rounds, for which the instruction of its own is slow.
__device__ __forceinline__ float squared_error(float x, float step, float inverse_step) {
  constexpr float shift = 0x1p23f;
  const float magnitude = fabsf(x), code = (fminf(magnitude * inverse_step, largest_code) + shift) - shift;
  const float error = fmaf(-code, step, magnitude);
  return error * error;
}

// For `count` candidates at once; partial sums of a block for each, in the order of candidates and blocks.
template <unsigned count>
__global__ __launch_bounds__(threads) void error_kernel(const uint4* __restrict__ x, double* __restrict__ partial, Steps steps,
                                                        unsigned packets) {
  __shared__ double shared_sums[device::largest_block_in_warps];
  double sums[count] = {};
  float inverse[count];
#pragma unroll
  for (unsigned c = 0; c < count; ++c) inverse[c] = 1 / steps.of[c];
  const unsigned stride = gridDim.x * threads;
  for (unsigned first = blockIdx.x * threads + threadIdx.x; first < packets; first += run_packets * stride) {
    uint4 run[run_packets] = {};  // zeros lose nothing
#pragma unroll
    for (unsigned r = 0; r < run_packets; ++r)
      if (first + r * stride < packets) run[r] = x[first + r * stride];
    float of_run[count] = {};
#pragma unroll
    for (unsigned r = 0; r < run_packets; ++r) {
      float values[packet];
      shared::unpack(run[r], values);
#pragma unroll
      for (int k = 0; k < packet; ++k)
#pragma unroll
        for (unsigned c = 0; c < count; ++c) of_run[c] += squared_error(values[k], steps.of[c], inverse[c]);
    }
#pragma unroll
    for (unsigned c = 0; c < count; ++c) sums[c] += static_cast<double>(of_run[c]);
  }
#pragma unroll
  for (unsigned c = 0; c < count; ++c) {
    const double sum = device::block_sum(sums[c], shared_sums);
    if (threadIdx.x == 0) partial[std::size_t{c} * gridDim.x + blockIdx.x] = sum;
  }
}

// A block adds up a candidate's partial sums.
__global__ __launch_bounds__(threads) void add_partial_kernel(const double* __restrict__ partial, double* __restrict__ errors,
                                                              unsigned parts, double elements) {
  __shared__ double shared_sums[device::largest_block_in_warps];
  double sum = 0;
  for (unsigned i = threadIdx.x; i < parts; i += threads) sum += partial[std::size_t{blockIdx.x} * parts + i];
  sum = device::block_sum(sum, shared_sums);
  if (threadIdx.x == 0) errors[blockIdx.x] = sum / elements;
}

// One warp; of equal ones the smaller clip.
__global__ __launch_bounds__(32) void choose_kernel(const double* errors, int* best, unsigned candidates) {
  double least = INFINITY;
  unsigned chosen = 0;
  for (unsigned c = threadIdx.x; c < candidates; c += 32)
    if (errors[c] < least) least = errors[c], chosen = c;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const double other = __shfl_xor_sync(device::whole_warp, least, offset);
    const unsigned of_other = __shfl_xor_sync(device::whole_warp, chosen, offset);
    if (other < least || (other == least && of_other < chosen)) least = other, chosen = of_other;
  }
  if (threadIdx.x == 0) *best = static_cast<int>(chosen);
}

// A block has a candidate: the errors of all magnitudes, each as often as it was counted. Counters beyond 32768 are those of
// negative numbers.
__global__ __launch_bounds__(wide_threads) void sum_bins_kernel(const unsigned* __restrict__ counts, double* __restrict__ errors,
                                                                unsigned bins, double elements) {
  __shared__ double shared_sums[device::largest_block_in_warps];
  const double step = static_cast<double>(step_of(blockIdx.x, gridDim.x));
  double sum = 0;
  for (unsigned i = threadIdx.x; i < bins; i += wide_threads) {
    const unsigned count = counts[i];
    if (count == 0) continue;
    const double x = static_cast<double>(__uint_as_float(i % magnitudes << 16));
    const double error = x - step * fmin(rint(x / step), static_cast<double>(largest_code));
    sum += error * error * count;
  }
  sum = device::block_sum(sum, shared_sums);
  if (threadIdx.x == 0) errors[blockIdx.x] = sum / elements;
}

__device__ __forceinline__ void codes_of(const uint4& from, unsigned (&codes)[packet]) {
  const unsigned words[4] = {from.x & 0x7FFF7FFFu, from.y & 0x7FFF7FFFu, from.z & 0x7FFF7FFFu, from.w & 0x7FFF7FFFu};
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[2 * i] = words[i] & 0xFFFF, codes[2 * i + 1] = words[i] >> 16;
}

__global__ __launch_bounds__(threads) void global_histogram_kernel(const uint4* __restrict__ x, unsigned* __restrict__ counts,
                                                                   unsigned packets) {
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < packets; i += gridDim.x * threads) {
    unsigned codes[packet];
    codes_of(x[i], codes);
#pragma unroll
    for (int k = 0; k < packet; ++k) atomicAdd(&counts[codes[k]], 1u);
  }
}

// How a thread's eight codes get to the counters of its block.
struct Singly {
  __device__ __forceinline__ void count(const unsigned (&codes)[packet], unsigned* counters) {
#pragma unroll
    for (int k = 0; k < packet; ++k) atomicAdd(&counters[codes[k]], 1u);
  }
  __device__ __forceinline__ void finish(unsigned*) {}
};
// Zeros, which activations have most of, never leave their thread.
struct ZerosApart {
  unsigned zeros = 0;
  __device__ __forceinline__ void count(const unsigned (&codes)[packet], unsigned* counters) {
#pragma unroll
    for (int k = 0; k < packet; ++k) {
      if (codes[k] == 0) ++zeros;
      else atomicAdd(&counters[codes[k]], 1u);
    }
  }
  __device__ __forceinline__ void finish(unsigned* counters) {
    const unsigned of_warp = device::warp_sum(zeros);
    if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(&counters[0], of_warp);
  }
};

// A block has an SM, with counters for all magnitudes.
template <class How>
__global__ __launch_bounds__(wide_threads) void code_histogram_kernel(const uint4* __restrict__ x, unsigned* __restrict__ counts,
                                                                      unsigned packets) {
  extern __shared__ uint4 counter_space[];
  unsigned* const counters = reinterpret_cast<unsigned*>(counter_space);
  for (unsigned i = threadIdx.x; i < magnitudes / 4; i += wide_threads) counter_space[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  How how;
  const unsigned stride = gridDim.x * wide_threads;
  unsigned i = blockIdx.x * wide_threads + threadIdx.x;
  uint4 next[2] = {};  // two loads are under way while two are counted
#pragma unroll
  for (unsigned k = 0; k < 2; ++k)
    if (i + k * stride < packets) next[k] = x[i + k * stride];
  for (; i < packets; i += 2 * stride) {
    const uint4 present[2] = {next[0], next[1]};
#pragma unroll
    for (unsigned k = 0; k < 2; ++k)
      if (i + (2 + k) * stride < packets) next[k] = x[i + (2 + k) * stride];
    unsigned codes[packet];
    codes_of(present[0], codes);
    how.count(codes, counters);
    if (i + stride < packets) {
      codes_of(present[1], codes);
      how.count(codes, counters);
    }
  }
  how.finish(counters);
  __syncthreads();
  for (unsigned code = threadIdx.x; code < magnitudes; code += wide_threads)
    if (const unsigned count = counters[code]; count > 0) atomicAdd(&counts[code], count);
}

// For the reference: both signs apart, one element a thread.
__global__ __launch_bounds__(threads) void reference_counts_kernel(const std::uint16_t* x, unsigned* counts,
                                                                   std::size_t elements) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < elements) atomicAdd(&counts[x[i]], 1u);
}

class CalibrationSearch final : public Workload {
 public:
  explicit CalibrationSearch(Setup& setup)
      : count_{setup.size("elements")},
        candidates_{static_cast<unsigned>(setup.size("candidates"))},
        x_{setup.input<bf16>(count_, values(setup.size("zeros"), setup.size("all_equal") != 0), {.name = "activations"})},
        errors_{setup.output<double>(candidates_, {.name = "mean squared errors"})},
        best_{setup.output<int>(1, {.name = "best clip"})},
        counts_{setup.scratch<unsigned>(all_codes, {.name = "counts"})},
        reference_counts_{setup.scratch<unsigned>(all_codes, {.name = "counts of the reference"})},
        partial_{setup.scratch<double>(candidates_ * pass_blocks(), {.name = "partial sums"})},
        cub_bytes_{cub_histogram(nullptr, 0, nullptr)},
        cub_space_{setup.scratch<std::uint8_t>(cub_bytes_, {.name = "workspace of CUB"})} {}

  Cost cost() const override { return {.bytes = static_cast<double>(x_.bytes() + errors_.bytes() + best_.bytes())}; }
  void compute_reference(Launch& launch) override {
    std::vector<unsigned> counts(all_codes);
    check(cudaMemsetAsync(reference_counts_, 0, reference_counts_.bytes(), launch.stream));
    launch(reference_counts_kernel, {static_cast<unsigned>((count_ + threads - 1) / threads), threads}, samples(),
           reference_counts_, count_);
    check(cudaMemcpyAsync(counts.data(), reference_counts_, reference_counts_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    expected_.assign(candidates_, 0);
    for (unsigned c = 0; c < candidates_; ++c) {
      const auto step = static_cast<double>(step_of(c, candidates_));
      for (unsigned code = 0; code < all_codes; ++code) {
        if (counts[code] == 0) continue;
        const std::uint32_t bits = code << 16;
        float single = 0;
        std::memcpy(&single, &bits, sizeof single);
        const auto x = static_cast<double>(single);
        const double quantized = std::clamp(std::nearbyint(x / step), -double{largest_code}, double{largest_code});
        expected_[c] += (x - step * quantized) * (x - step * quantized) * counts[code];
      }
      expected_[c] /= static_cast<double>(count_);
    }
  }
  double expected_output(int output, std::size_t i) const override {
    if (output == 0) return expected_[i];
    return static_cast<double>(std::min_element(expected_.begin(), expected_.end()) - expected_.begin());
  }

  void pass_per_candidate(Launch& launch) { passes<1>(launch); }
  void multi_candidate(Launch& launch) { passes<together>(launch); }
  void global_histogram(Launch& launch) { count(launch, global_histogram_kernel, {multiprocessors() * blocks_per_sm, threads}); }
  template <class How>
  void code_histogram(Launch& launch) {
    count(launch, code_histogram_kernel<How>,
          {.blocks = multiprocessors(), .threads = wide_threads, .shared_bytes = magnitudes * sizeof(unsigned)});
  }
  void cub_histogram_even(Launch& launch) {
    cub_histogram(cub_space_, cub_bytes_, launch.stream);
    sum_bins(launch, all_codes);
  }

 private:
  // Channels with outliers, some of which are beyond the largest clip; subnormals and zeros of both signs; and `zeros` percent of
  // zeros, as after a ReLU.
  Pattern values(std::size_t zeros, bool all_equal) const {
    if (all_equal) return constant(0.7f);
    const Axis elements{1, count_}, channels{1, std::min<std::size_t>(count_, 8192)};
    const Pattern pattern = normal(0, 1)
                                .times(20, 100, drawn(channels, 8))
                                .times(1e-39f, drawn(elements, std::max<std::size_t>(count_ / 4096, 1)))
                                .set(-0.0f, drawn(elements, std::max<std::size_t>(count_ / 4096, 1)));
    if (zeros == 0) return pattern;
    return pattern.set(0, drawn(elements, std::max<std::size_t>(count_ * zeros / 100, 1)));
  }
  static std::size_t pass_blocks() { return std::size_t{multiprocessors()} * blocks_per_sm; }
  const uint4* packets() const { return reinterpret_cast<const uint4*>(x_.get()); }
  const std::uint16_t* samples() const { return reinterpret_cast<const std::uint16_t*>(x_.get()); }

  template <unsigned together_now>
  void passes(Launch& launch) {
    const std::size_t blocks = pass_blocks();
    for (unsigned first = 0; first < candidates_; first += together_now) {
      Steps steps{};
      for (unsigned c = 0; c < together_now; ++c) steps.of[c] = step_of(first + c, candidates_);
      launch(error_kernel<together_now>, {static_cast<unsigned>(blocks), threads}, packets(), partial_.get() + first * blocks,
             steps, count_ / packet);
    }
    launch(add_partial_kernel, {candidates_, threads}, partial_, errors_, blocks, static_cast<double>(count_));
    launch(choose_kernel, {1, device::warp_size}, errors_, best_, candidates_);
  }
  void count(Launch& launch, void (*kernel)(const uint4*, unsigned*, unsigned), const Grid& grid) {
    check(cudaMemsetAsync(counts_, 0, magnitudes * sizeof(unsigned), launch.stream));
    launch(kernel, grid, packets(), counts_, count_ / packet);
    sum_bins(launch, magnitudes);
  }
  void sum_bins(Launch& launch, unsigned bins) {
    launch(sum_bins_kernel, {candidates_, wide_threads}, counts_, errors_, bins, static_cast<double>(count_));
    launch(choose_kernel, {1, device::warp_size}, errors_, best_, candidates_);
  }
  // Returns the workspace that it needs; does nothing else when there is none.
  std::size_t cub_histogram(void* space, std::size_t bytes, cudaStream_t stream) {
    check(cub::DeviceHistogram::HistogramEven(space, bytes, samples(), counts_.get(), static_cast<int>(all_codes) + 1, 0,
                                              static_cast<int>(all_codes), static_cast<int>(count_), stream));
    return bytes;
  }

  std::size_t count_;
  unsigned candidates_;
  Input<bf16> x_;
  Output<double> errors_;
  Output<int> best_;
  Scratch<unsigned> counts_, reference_counts_;
  Scratch<double> partial_;
  std::size_t cub_bytes_;
  Scratch<std::uint8_t> cub_space_;
  std::vector<double> expected_;
};

}  // namespace

extern constinit const Pair calibration_search{
    .teaches = "bf16 has 32768 magnitudes: one histogram tells every candidate's quantization error, exactly",
    .lesson = "code_histogram",
    .make = make<CalibrationSearch>,
    .baseline = {.name = "pass_per_candidate", .run = call<&CalibrationSearch::pass_per_candidate>},
    .optimized = variants(
        {{.name = "multi_candidate", .run = call<&CalibrationSearch::multi_candidate>, .kernels = {.local_bytes = 0}},
         {.name = "code_histogram", .run = call<&CalibrationSearch::code_histogram<Singly>>},
         {.name = "zeros_apart", .run = call<&CalibrationSearch::code_histogram<ZerosApart>>, .same_bits_as = "code_histogram"}}),
    // The idea without its kernel.
    .controls = variants({{.name = "global_histogram", .run = call<&CalibrationSearch::global_histogram>}}),
    .libraries = variants({{.name = "cub_histogram_even", .run = call<&CalibrationSearch::cub_histogram_even>}}),
    .bound = Bound::memory,
    // Passes add up 32 squares in fp32 and all the rest in float64. Next to an outlier's square small ones are lost, all in one
    // direction: half a place, 6e-8, in half of 32 additions at worst.
    .tolerance = per_output({within(1e-6), exact}),
    .sizes = sizes({{.name = "elements", .full = 1u << 27, .multiple = packet, .most = 1u << 30},
                    {.name = "candidates", .full = 64, .multiple = together, .most = 256, .scales = false},
                    {.name = "zeros", .full = 0, .most = 100, .scales = false},  // percent
                    option("all_equal")}),
    .sweep = cases({{"zeros_0", "zeros=0"},
                    {"zeros_50", "zeros=50"},
                    {"zeros_90", "zeros=90"},
                    {"candidates_16", "candidates=16"},
                    {"candidates_64", "candidates=64"},
                    {"candidates_256", "candidates=256"}}),
    .edges = cases({{"one_packet", "elements=8"},
                    {"tail", "elements=1000008,candidates=16"},
                    {"all_equal", "elements=1000008,all_equal=1"},
                    {"half_zero", "elements=1000008,zeros=50"}}),
};

}  // namespace aisp::ch19
