// SPDX-License-Identifier: Apache-2.0
// GELU in its tanh form over fp32 activations. In C++ a literal without f is a double, and whatever touches it becomes one: the
// whole formula, tanh included, runs on the fp64 units, at half the rate and with many more instructions, and a kernel that
// should follow memory is bound by compute. The suffix alone gives fp32 math; the same formula on 16-byte accesses then reaches
// the memory roof.
#include <aisp/pair.hpp>

#include <cmath>

namespace aisp::ch01 {
namespace {

constexpr int threads = 256;
constexpr int wide_threads = 1024;
constexpr std::size_t granule = std::size_t{wide_threads} * 4;

__global__ __launch_bounds__(threads) void double_literals_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  const float x = in[i];
  out[i] = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

__device__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

__global__ __launch_bounds__(threads) void float_literals_kernel(const float* in, float* out, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  out[i] = gelu(in[i]);
}

__global__ __launch_bounds__(wide_threads) void vectorized_kernel(const float4* in, float4* out) {
  const std::size_t i = std::size_t{blockIdx.x} * wide_threads + threadIdx.x;
  const float4 x = in[i];
  out[i] = make_float4(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
}

class DoublePromotion final : public Workload {
 public:
  explicit DoublePromotion(Setup& setup)
      : count_{setup.scaled(std::size_t{16384} * 8192, granule)},
        in_{setup.input<float>(count_, normal(0, 1), {.name = "activations"})},
        out_{setup.output<float>(count_, {.name = "gelu"})} {}

  // As the least, six for the polynomial and its use; what tanh takes on top of them is its own affair.
  Cost cost() const override {
    return {.flops = 6.0 * static_cast<double>(count_), .bytes = static_cast<double>(in_.bytes() + out_.bytes())};
  }
  double expected(std::size_t i) const override {
    const double x = in_.host(i);
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void double_literals(Launch& launch) {
    double_literals_kernel<<<blocks(), threads, 0, launch.stream>>>(in_, out_, count_);
    check(cudaGetLastError());
  }
  void float_literals(Launch& launch) {
    float_literals_kernel<<<blocks(), threads, 0, launch.stream>>>(in_, out_, count_);
    check(cudaGetLastError());
  }
  void vectorized(Launch& launch) {
    vectorized_kernel<<<static_cast<unsigned>(count_ / granule), wide_threads, 0, launch.stream>>>(
        reinterpret_cast<const float4*>(in_.get()), reinterpret_cast<float4*>(out_.get()));
    check(cudaGetLastError());
  }

 private:
  unsigned blocks() const { return static_cast<unsigned>(count_ / threads); }

  std::size_t count_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair double_promotion{
    .teaches =
        "a literal without f turns fp32 math into fp64 math, and a kernel that should follow memory into one that computes",
    .lesson = "float_literals",
    .make = make<DoublePromotion>,
    .baseline = {.name = "double_literals", .run = call<&DoublePromotion::double_literals>},
    .optimized = variants({{.name = "float_literals", .run = call<&DoublePromotion::float_literals>},
                           {.name = "vectorized", .run = call<&DoublePromotion::vectorized>}}),
    .bound = Bound::memory,
    // An element may be off by 3.6e-7 of itself plus the outputs' root mean square of 0.65: at most 2e-6, as no output exceeds
    // 4.9.
    .tolerance = within(3e-7, 3.6e-7),
    .reference_samples = std::size_t{1} << 20,
};

}  // namespace aisp::ch01
