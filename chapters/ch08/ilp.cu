// SPDX-License-Identifier: Apache-2.0
// A gated recurrence, h[t] = a[t] h[t-1] + x[t], over 16384 independent sequences: four warps an SM, and no more can be had. The
// step itself is one multiply-add; what takes time is that a store of h[t] might change a[t+1], so no load may pass it and each
// step waits for memory. Loads of 16 steps taken ahead of the chain wait once for all of them.
#include <aisp/pair.hpp>

#include <numeric>

#include "residency.hpp"

namespace aisp::ch08 {
namespace {

constexpr int threads = 32;  // a block: small, so that every SM has some
constexpr int batch = 16;    // steps

__global__ void dependent_kernel(const float* a, const float* x, float* h, unsigned sequences, unsigned steps) {
  std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  float state = 0;
  for (unsigned t = 0; t < steps; ++t, i += sequences) {
    state = fmaf(a[i], state, x[i]);
    h[i] = state;
  }
}

// Nothing but the promise that the arrays do not overlap.
__global__ void restrict_kernel(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ h,
                                unsigned sequences, unsigned steps) {
  std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  float state = 0;
  for (unsigned t = 0; t < steps; ++t, i += sequences) {
    state = fmaf(a[i], state, x[i]);
    h[i] = state;
  }
}

struct Batch {
  float a[batch], x[batch];
};

__device__ __forceinline__ void load(Batch& next, const float* a, const float* x, unsigned sequences) {
#pragma unroll
  for (int k = 0; k < batch; ++k) {
    next.a[k] = a[std::size_t{sequences} * k];
    next.x[k] = x[std::size_t{sequences} * k];
  }
}
// Runs the chain over a batch and stores it; the state after its last step is returned.
__device__ __forceinline__ float run(const Batch& steps, float state, float* h, unsigned sequences) {
#pragma unroll
  for (int k = 0; k < batch; ++k) {
    state = fmaf(steps.a[k], state, steps.x[k]);
    h[std::size_t{sequences} * k] = state;
  }
  return state;
}

__global__ __launch_bounds__(threads) void batched_kernel(const float* a, const float* x, float* h, unsigned sequences,
                                                          unsigned steps) {
  std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  float state = 0;
  for (unsigned t = 0; t < steps; t += batch, i += std::size_t{sequences} * batch) {
    Batch now;
    load(now, a + i, x + i, sequences);
    state = run(now, state, h + i, sequences);
  }
}

// Two batches take turns in registers: the loads of one are under way while the chain of the other runs.
__global__ __launch_bounds__(threads) void pipelined_kernel(const float* a, const float* x, float* h, unsigned sequences,
                                                            unsigned steps) {
  const std::size_t stride = std::size_t{sequences} * batch;
  std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  float state = 0;
  Batch even, odd;
  load(even, a + i, x + i, sequences);
  for (unsigned t = 0; t < steps; t += 2 * batch, i += 2 * stride) {
    load(odd, a + i + stride, x + i + stride, sequences);
    state = run(even, state, h + i, sequences);
    if (t + 2 * batch < steps) load(even, a + i + 2 * stride, x + i + 2 * stride, sequences);
    state = run(odd, state, h + i + stride, sequences);
  }
}

class Ilp final : public Workload {
 public:
  explicit Ilp(Setup& setup)
      : sequences_{setup.size("sequences")},
        elements_{setup.scaled(std::size_t{64} << 20, std::lcm(most_sequences, sequences_) * 2 * batch)},
        a_{setup.input<float>(elements_, uniform(0, 1), {.name = "gates"})},
        x_{setup.input<float>(elements_, uniform(-1, 1), {.name = "x"})},
        h_{setup.output<float>(elements_, {.name = "h"})} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(elements_), .bytes = static_cast<double>(a_.bytes() + x_.bytes() + h_.bytes())};
  }
  double expected(std::size_t index) const override {
    double state = 0;
    for (std::size_t i = index % sequences_; i <= index; i += sequences_) state = a_.host(i) * state + x_.host(i);
    return state;
  }
  void metrics(std::string_view, Metrics& metrics) override { launched_.report(metrics); }

  void dependent_loads(Launch& launch) { recur(launch, dependent_kernel, sequences_); }
  void batched_loads(Launch& launch) { recur(launch, batched_kernel, sequences_); }
  void restrict_pointers(Launch& launch) { recur(launch, restrict_kernel, sequences_); }
  void pipelined_loads(Launch& launch) { recur(launch, pipelined_kernel, sequences_); }
  // The same bytes as many short sequences: another result, with the baseline's kernel.
  void many_sequences(Launch& launch) { recur(launch, dependent_kernel, most_sequences); }

  static constexpr std::size_t most_sequences = 262144;

 private:
  using Kernel = void (*)(const float*, const float*, float*, unsigned, unsigned);
  void recur(Launch& launch, Kernel kernel, std::size_t sequences) {
    launched_.launch(launch, kernel, {static_cast<unsigned>(sequences / threads), threads}, a_, x_, h_, sequences,
                     elements_ / sequences);
  }

  std::size_t sequences_, elements_;
  Input<float> a_, x_;
  Output<float> h_;
  Residency launched_;
};

}  // namespace

extern constinit const Pair ilp{
    .teaches =
        "where a problem offers few threads, each must keep many independent loads in flight, and a store that may alias forbids "
        "it",
    .lesson = "batched_loads",
    .make = make<Ilp>,
    .baseline = {.name = "dependent_loads", .run = call<&Ilp::dependent_loads>},
    .optimized = variants({{.name = "batched_loads", .run = call<&Ilp::batched_loads>},
                           {.name = "restrict_pointers", .run = call<&Ilp::restrict_pointers>, .gains_over = "dependent_loads"},
                           {.name = "pipelined_loads", .run = call<&Ilp::pipelined_loads>, .gains_over = "batched_loads"}}),
    .controls = variants({{.name = "many_sequences", .run = call<&Ilp::many_sequences>, .outputs = no_outputs}}),
    .bound = Bound::memory,
    // A state forgets within a few steps, so rounding does not pile up over them.
    .tolerance = within(1e-6),
    .sizes = sizes({{.name = "sequences", .full = 16384, .multiple = 4096, .most = 1u << 18, .scales = false}}),
    .sweep = cases({{"sequences_4096", "sequences=4096"},
                    {"sequences_16384", "sequences=16384"},
                    {"sequences_65536", "sequences=65536"},
                    {"sequences_262144", "sequences=262144"}}),
    .edges = cases({{"sequences_4096", "sequences=4096"}}),
};

}  // namespace aisp::ch08
