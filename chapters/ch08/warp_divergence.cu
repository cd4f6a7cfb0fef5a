// SPDX-License-Identifier: Apache-2.0
// Log-likelihoods of a stream of events, each of one of four distributions. A warp runs every branch that one of its lanes takes,
// and among 32 events there are nearly always all four: two evaluations of lgamma, hundreds of instructions each, for the three
// lanes that need them. Branches that only choose the argument share the first call. Better, a block ranks 2048 events by
// their kind, so that each warp has one kind to do, and returns the results to their places through shared memory.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <cmath>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int rounds = 8, events = threads * rounds;  // of a block
constexpr int kinds = 4;
constexpr int slots = events + kinds * 32;  // every kind begins at a multiple of 32
enum Kind : std::uint8_t { gaussian, bernoulli, poisson, student_t };

struct Event {
  float value, first, second;  // value in [0, 8), first parameter in (0, 1), second in [1, 6)
};

__device__ float log_gaussian(Event e) {
  const float z = (e.value - 8 * e.first) / e.second;
  return -0.5f * z * z - logf(e.second) - 0.9189385f;
}
__device__ float log_bernoulli(Event e) { return e.value < 4 ? logf(e.first) : log1pf(-e.first); }
__device__ float log_poisson(Event e, float log_factorial) { return floorf(e.value) * logf(e.second) - e.second - log_factorial; }
// `upper` and `lower`: the logarithms of gamma((second + 1) / 2) and gamma(second / 2).
__device__ float log_student_t(Event e, float upper, float lower) {
  const float z = e.value - 8 * e.first;
  return upper - lower - 0.5f * logf(3.1415927f * e.second) - 0.5f * (e.second + 1) * log1pf(z * z / e.second);
}

__device__ __forceinline__ float log_likelihood(int kind, Event e) {
  switch (kind) {
    case gaussian: return log_gaussian(e);
    case bernoulli: return log_bernoulli(e);
    case poisson: return log_poisson(e, lgammaf(floorf(e.value) + 1));
    default: return log_student_t(e, lgammaf(0.5f * (e.second + 1)), lgammaf(0.5f * e.second));
  }
}

__global__ __launch_bounds__(threads) void switch_kernel(const std::uint8_t* kind, const float* value, const float* first,
                                                         const float* second, float* out) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  out[i] = log_likelihood(kind[i], {value[i], first[i], second[i]});
}

__global__ __launch_bounds__(threads) void merged_kernel(const std::uint8_t* kind, const float* value, const float* first,
                                                         const float* second, float* out) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  const Event e{value[i], first[i], second[i]};
  const int of = kind[i];
  const float argument = of == poisson ? floorf(e.value) + 1 : of == student_t ? 0.5f * (e.second + 1) : 1.0f;
  const float log_gamma = lgammaf(argument);
  switch (of) {
    case gaussian: out[i] = log_gaussian(e); break;
    case bernoulli: out[i] = log_bernoulli(e); break;
    case poisson: out[i] = log_poisson(e, log_gamma); break;
    default: out[i] = log_student_t(e, log_gamma, lgammaf(0.5f * e.second));
  }
}

// The slots of each kind's bin, and the beginning of each warp's share of them.
struct Bins {
  int begin[kinds + 1], end[kinds], of_warp[kinds][warps];
};

// Lane 8 * kind + warp of the first warp has the number of that warp's events of that kind.
__device__ void lay_out(Bins& bins, const int (&counts)[kinds][warps]) {
  const int lane = threadIdx.x, kind = lane / warps;
  const int count = counts[kind][lane % warps];
  int through = count;
#pragma unroll
  for (int offset = 1; offset < warps; offset *= 2) {
    const int below = __shfl_up_sync(device::whole_warp, through, offset, warps);
    if (lane % warps >= offset) through += below;
  }
  int begin = 0, total = 0;
#pragma unroll
  for (int k = 0; k < kinds; ++k) {
    total = __shfl_sync(device::whole_warp, through, k * warps + warps - 1);
    if (k == kind) bins.of_warp[kind][lane % warps] = begin + through - count;
    if (lane == 0) bins.begin[k] = begin, bins.end[k] = begin + total;
    begin += (total + 31) / 32 * 32;
  }
  if (lane == 0) bins.begin[kinds] = begin;
}

__global__ __launch_bounds__(threads) void binning_kernel(const std::uint8_t* kind, const float* value, const float* first,
                                                          const float* second, float* out) {
  __shared__ Bins bins;
  __shared__ int counts[kinds][warps];
  __shared__ float values[slots], firsts[slots], seconds[slots], results[events];
  __shared__ std::uint16_t places[slots];  // in the block, of the events in their bins
  static_assert(kinds * warps == 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::size_t base = std::size_t{blockIdx.x} * events;
  const unsigned lanes_before = (1u << lane) - 1;

  int own[rounds], rank[rounds], found[kinds] = {};
  Event e[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const std::size_t i = base + r * threads + threadIdx.x;
    own[r] = kind[i];
    e[r] = {value[i], first[i], second[i]};
  }
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int k = 0; k < kinds; ++k) {
      const unsigned votes = __ballot_sync(device::whole_warp, own[r] == k);
      if (own[r] == k) rank[r] = found[k] + __popc(votes & lanes_before);
      found[k] += __popc(votes);
    }
  }
#pragma unroll
  for (int k = 0; k < kinds; ++k)
    if (lane == k) counts[k][warp] = found[k];
  __syncthreads();
  if (warp == 0) lay_out(bins, counts);
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const int slot = bins.of_warp[own[r]][warp] + rank[r];
    values[slot] = e[r].value, firsts[slot] = e[r].first, seconds[slot] = e[r].second;
    places[slot] = static_cast<std::uint16_t>(r * threads + threadIdx.x);
  }
  __syncthreads();
  for (int group = warp * 32; group < bins.begin[kinds]; group += threads) {
    int k = 0;  // the same for all lanes
    while (group >= bins.begin[k + 1]) ++k;
    const int slot = group + lane;
    if (slot < bins.end[k]) results[places[slot]] = log_likelihood(k, {values[slot], firsts[slot], seconds[slot]});
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rounds; ++r) out[base + r * threads + threadIdx.x] = results[r * threads + threadIdx.x];
}

class WarpDivergence final : public Workload {
 public:
  explicit WarpDivergence(Setup& setup)
      : count_{setup.scaled(std::size_t{64} << 20, events)},
        kinds_{setup.input<std::uint8_t>(count_, mixed(setup.size("student_percent")), {.name = "kinds"})},
        sorted_{setup.input<std::uint8_t>(count_, in_order(setup.size("student_percent")),
                                          {.name = "sorted kinds", .constant = true})},
        value_{setup.input<float>(count_, uniform(0, 8), {.name = "values"})},
        first_{setup.input<float>(count_, uniform(0.05f, 0.95f), {.name = "first parameters"})},
        second_{setup.input<float>(count_, uniform(1, 6), {.name = "second parameters"})},
        out_{setup.output<float>(count_, {.name = "log-likelihoods"})} {}

  Cost cost() const override {
    return {.bytes = static_cast<double>(kinds_.bytes() + value_.bytes() + first_.bytes() + second_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const double value = value_.host(i), first = first_.host(i), second = second_.host(i), z = value - 8 * first;
    switch (kinds_.host(i)) {
      case gaussian: return -0.5 * z * z / (second * second) - std::log(second) - 0.91893853320467274;
      case bernoulli: return std::log(value < 4 ? first : 1 - first);
      case poisson: return std::floor(value) * std::log(second) - second - log_gamma(std::floor(value) + 1);
      default:
        return log_gamma((second + 1) / 2) - log_gamma(second / 2) - 0.5 * std::log(3.14159265358979324 * second) -
               (second + 1) / 2 * std::log1p(z * z / second);
    }
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void switch_by_kind(Launch& launch) { run(launch, switch_kernel, kinds_, threads); }
  void merged_calls(Launch& launch) { run(launch, merged_kernel, kinds_, threads); }
  void block_binning(Launch& launch) { run(launch, binning_kernel, kinds_, events); }
  // The baseline where the lanes of nearly all warps agree: other kinds for the same values.
  void switch_on_sorted(Launch& launch) { run(launch, switch_kernel, sorted_, threads); }

 private:
  using Kernel = void (*)(const std::uint8_t*, const float*, const float*, const float*, float*);

  // std::lgamma writes a global variable; this one may be called from several threads.
  static double log_gamma(double x) {
    int sign = 0;
    return ::lgamma_r(x, &sign);
  }
  // So many per cent are Student-t, the others are equally many.
  static Kind kind_of(std::uint64_t percent, std::uint64_t other, std::size_t student_percent) {
    return percent < student_percent ? student_t : static_cast<Kind>(other % 3);
  }
  static HostFill<std::uint8_t> mixed(std::size_t student_percent) {
    return [=](std::span<std::uint8_t> filled, std::uint64_t seed) {
      for (std::size_t i = 0; i < filled.size(); ++i) {
        const std::uint64_t bits = random_bits(seed, i);
        filled[i] = kind_of((bits >> 32) * 100 >> 32, bits & 0xFFFFFF, student_percent);
      }
    };
  }
  static HostFill<std::uint8_t> in_order(std::size_t student_percent) {
    return [=](std::span<std::uint8_t> filled, std::uint64_t) {
      const std::size_t students = filled.size() * student_percent / 100, others = filled.size() - students;
      for (std::size_t i = 0; i < filled.size(); ++i)
        filled[i] = i < others ? static_cast<std::uint8_t>(i * 3 / others) : std::uint8_t{student_t};
    };
  }
  void run(Launch& launch, Kernel kernel, const std::uint8_t* kind, unsigned per_block) {
    launched_.launch(launch, kernel, {static_cast<unsigned>(count_ / per_block), threads}, kind, value_, first_, second_, out_);
  }

  std::size_t count_;
  Input<std::uint8_t> kinds_, sorted_;
  Input<float> value_, first_, second_;
  Output<float> out_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair warp_divergence{
    .teaches = "a warp runs every branch that one of its lanes takes: ranked by branch inside the block, its lanes agree",
    .lesson = "block_binning",
    .make = make<WarpDivergence>,
    .baseline = {.name = "switch_by_kind", .run = call<&WarpDivergence::switch_by_kind>},
    .optimized =
        variants({{.name = "merged_calls", .run = call<&WarpDivergence::merged_calls>},
                  {.name = "block_binning", .run = call<&WarpDivergence::block_binning>, .gains_over = "switch_by_kind"}}),
    .controls = variants({{.name = "switch_on_sorted", .run = call<&WarpDivergence::switch_on_sorted>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    // Terms of up to 20 cancel, each with an error of a few units of the last place.
    .tolerance = within(2e-6, 1e-5),
    .sizes = sizes({{.name = "student_percent", .full = 10, .most = 100, .scales = false}}),
    .sweep = cases({{"student_1", "student_percent=1"},
                    {"student_5", "student_percent=5"},
                    {"student_10", "student_percent=10"},
                    {"student_25", "student_percent=25"},
                    {"student_50", "student_percent=50"},
                    {"student_100", "student_percent=100"}}),
    .edges = cases({{"student_percent_1", "student_percent=1"}, {"student_percent_5", "student_percent=5"}}),
    .reference_samples = 16384,
};

}  // namespace aisp::ch08
