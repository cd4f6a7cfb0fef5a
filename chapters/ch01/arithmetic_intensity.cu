// SPDX-License-Identifier: Apache-2.0
// out = a + clamp(gate(poly(0.5 * a * b + 1))), written one operation at a time, as an array library runs it: six passes that
// move 56 bytes an element for 14 floating-point operations and an exponential, bound by memory though not at its roof. More
// loads in flight or wider ones bring a pass closer to that. What counts is to leave passes out: 32 bytes when they are merged in
// pairs, and 12, each input read once and the result written once, in a single kernel.
#include <aisp/device/vector.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

namespace aisp::ch01 {
namespace {

using Packet = device::Vector16<float>;
constexpr int threads = 256;
constexpr int unroll = 4;           // elements of a thread of the unrolled kernel
constexpr int wide_threads = 1024;  // of the vectorized kernel, with one packet each
constexpr std::size_t granule = std::size_t{wide_threads} * Packet::size();

constexpr float lowest = -0.25f, highest = 1.5f;

// The six operations as written.
struct Product {
  static __device__ float of(float a, float b) { return 0.5f * a * b; }
};
struct AddOne {
  static __device__ float of(float t) { return t + 1.0f; }
};
struct Polynomial {
  static __device__ float of(float t) { return (((0.0625f * t - 0.25f) * t + 0.125f) * t + 1.0f) * t - 0.5f; }
};
struct Gate {
  static __device__ float of(float t) { return __fdividef(t, 1.0f + __expf(-t)); }
};
struct Clamp {
  static __device__ float of(float t) { return fminf(fmaxf(t, lowest), highest); }
};
struct Sum {
  static __device__ float of(float t, float a) { return a + t; }
};

// Merged in pairs, and all in one.
struct ProductAddOne {
  static __device__ float of(float a, float b) { return AddOne::of(Product::of(a, b)); }
};
struct PolynomialGate {
  static __device__ float of(float t) { return Gate::of(Polynomial::of(t)); }
};
struct ClampSum {
  static __device__ float of(float t, float a) { return Sum::of(Clamp::of(t), a); }
};
struct Everything {
  static __device__ float of(float a, float b) { return ClampSum::of(PolynomialGate::of(ProductAddOne::of(a, b)), a); }
};

// One pass each: out = Step::of(in...). `out` may be one of the inputs, as each thread reads what it overwrites.
template <class Step, class... In>
__global__ __launch_bounds__(threads) void scalar_kernel(std::size_t count, float* out, const In*... in) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) out[i] = Step::of(in[i]...);
}

// All loads come before the first store, so that four of them per input are in flight.
template <class Step, class... In>
__global__ __launch_bounds__(threads) void unrolled_kernel(float* out, const In*... in) {
  const std::size_t first = std::size_t{blockIdx.x} * threads * unroll + threadIdx.x;
  float results[unroll];
#pragma unroll
  for (int k = 0; k < unroll; ++k) results[k] = Step::of(in[first + k * threads]...);
#pragma unroll
  for (int k = 0; k < unroll; ++k) out[first + k * threads] = results[k];
}

// By value: through references the compiler would load only what is used, and that one float at a time.
template <class Step, class... Packets>
__device__ Packet apply(Packets... in) {
  Packet result;
#pragma unroll
  for (int k = 0; k < Packet::size(); ++k) result[k] = Step::of(in[k]...);
  return result;
}

template <class Step, class... Packets>
__global__ __launch_bounds__(wide_threads) void vectorized_kernel(Packet* out, const Packets*... in) {
  const std::size_t i = std::size_t{blockIdx.x} * wide_threads + threadIdx.x;
  out[i] = apply<Step>(in[i]...);
}

// How a pass is run.
struct Scalar {
  template <class Step, class... In>
  static void pass(cudaStream_t stream, std::size_t count, float* out, const In*... in) {
    scalar_kernel<Step><<<static_cast<unsigned>(count / threads), threads, 0, stream>>>(count, out, in...);
    check(cudaGetLastError());
  }
};
struct Unrolled {
  template <class Step, class... In>
  static void pass(cudaStream_t stream, std::size_t count, float* out, const In*... in) {
    unrolled_kernel<Step><<<static_cast<unsigned>(count / (threads * unroll)), threads, 0, stream>>>(out, in...);
    check(cudaGetLastError());
  }
};
struct Vectorized {
  template <class Step, class... In>
  static void pass(cudaStream_t stream, std::size_t count, float* out, const In*... in) {
    vectorized_kernel<Step><<<static_cast<unsigned>(count / granule), wide_threads, 0, stream>>>(
        reinterpret_cast<Packet*>(out), reinterpret_cast<const Packet*>(in)...);
    check(cudaGetLastError());
  }
};

class ArithmeticIntensity final : public Workload {
 public:
  explicit ArithmeticIntensity(Setup& setup)
      : count_{setup.scaled(std::size_t{64} << 20, granule)},
        a_{setup.input<float>(count_, uniform(-2, 2), {.name = "a"})},
        b_{setup.input<float>(count_, uniform(-2, 2), {.name = "b"})},
        out_{setup.output<float>(count_, {.name = "out"})},
        temporary_{setup.scratch<float>(count_, {.name = "temporary"})} {}

  // Product 2, one 1, polynomial 8, gate 2, sum 1; exponentials and comparisons are no FLOPs.
  Cost cost() const override {
    return {.flops = 14.0 * static_cast<double>(count_), .bytes = static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const double a = a_.host(i), t = 0.5 * a * b_.host(i) + 1;
    const double polynomial = (((0.0625 * t - 0.25) * t + 0.125) * t + 1) * t - 0.5;
    const double gated = polynomial / (1 + std::exp(-polynomial));
    return a + std::clamp(gated, double{lowest}, double{highest});
  }

  template <class Style>
  void six_passes(Launch& launch) {
    float* const t = temporary_;
    pass<Style, Product>(launch, t, a_.get(), b_.get());
    pass<Style, AddOne>(launch, t, t);
    pass<Style, Polynomial>(launch, t, t);
    pass<Style, Gate>(launch, t, t);
    pass<Style, Clamp>(launch, t, t);
    pass<Style, Sum>(launch, out_, t, a_.get());
  }
  void merged_pairs(Launch& launch) {
    float* const t = temporary_;
    pass<Vectorized, ProductAddOne>(launch, t, a_.get(), b_.get());
    pass<Vectorized, PolynomialGate>(launch, t, t);
    pass<Vectorized, ClampSum>(launch, out_, t, a_.get());
  }
  void fused(Launch& launch) { pass<Vectorized, Everything>(launch, out_, a_.get(), b_.get()); }

 private:
  template <class Style, class Step, class... In>
  void pass(Launch& launch, float* out, const In*... in) const {
    Style::template pass<Step>(launch.stream, count_, out, in...);
  }

  std::size_t count_;
  Input<float> a_, b_;
  Output<float> out_;
  Scratch<float> temporary_;
};

}  // namespace

extern constinit const Pair arithmetic_intensity{
    .teaches = "tuning a pass gains percent, removing passes gains multiples: arithmetic intensity rises as bytes fall",
    .lesson = "fused",
    .make = make<ArithmeticIntensity>,
    .baseline = {.name = "scalar_passes", .run = call<&ArithmeticIntensity::six_passes<Scalar>>},
    .optimized = variants(
        {{.name = "unrolled", .run = call<&ArithmeticIntensity::six_passes<Unrolled>>},
         {.name = "vectorized", .run = call<&ArithmeticIntensity::six_passes<Vectorized>>, .gains_over = "scalar_passes"},
         {.name = "merged_pairs", .run = call<&ArithmeticIntensity::merged_pairs>},
         {.name = "fused", .run = call<&ArithmeticIntensity::fused>}}),
    .bound = Bound::memory,
    // About twenty fp32 roundings, and an exponential and a division that are good to two units in the last place.
    .tolerance = within(1e-6, 1e-5),
    .reference_samples = 65536,
};

}  // namespace aisp::ch01
