// SPDX-License-Identifier: Apache-2.0
// The backward pass of a gated activation, silu(gate) * up. Replayed operation by operation, its five kernels move fourteen
// tensors of 235 MB, because each result goes to memory and comes back. One kernel reads gate, up and the incoming gradient once
// and writes both gradients and the product that the next weight gradient needs: six tensors.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;

// An overflowing exponential gives a sigmoid of 0.
__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + device::exp2_approximate(-x * shared::log2_e));
}

// The operations, of one element of each tensor.
struct Silu {
  __device__ static void of(const float (&in)[1], float (&out)[1]) { out[0] = in[0] * sigmoid(in[0]); }
};
struct Multiply {
  __device__ static void of(const float (&in)[2], float (&out)[1]) { out[0] = in[0] * in[1]; }
};
__device__ __forceinline__ float silu_slope(float x, float s) { return s * (1 + x * (1 - s)); }
struct SiluBackward {  // gate, gradient of silu(gate)
  __device__ static void of(const float (&in)[2], float (&out)[1]) { out[0] = in[1] * silu_slope(in[0], sigmoid(in[0])); }
};
struct SwigluBackward {  // gate, up, gradient of the product; dgate, dup, product
  __device__ static void of(const float (&in)[3], float (&out)[3]) {
    const float s = sigmoid(in[0]), activated = in[0] * s;
    out[0] = in[2] * in[1] * silu_slope(in[0], s);
    out[1] = in[2] * activated;
    out[2] = activated * in[1];
  }
};

template <int inputs, int outputs>
struct Tensors {
  const bf16* in[inputs];
  bf16* out[outputs];
};

template <class Operation, int inputs, int outputs>
__device__ __forceinline__ void apply_to_one(const Tensors<inputs, outputs>& tensors, std::size_t i) {
  float x[inputs], y[outputs];
#pragma unroll
  for (int t = 0; t < inputs; ++t) x[t] = __bfloat162float(tensors.in[t][i]);
  Operation::of(x, y);
#pragma unroll
  for (int t = 0; t < outputs; ++t) tensors.out[t][i] = __float2bfloat16_rn(y[t]);
}

// A thread has eight neighbours of each tensor; the last thread has what is left.
template <class Operation, int inputs, int outputs>
__global__ __launch_bounds__(threads) void packets_kernel(Tensors<inputs, outputs> tensors, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if ((i + 1) * packet > count) {
    for (std::size_t k = i * packet; k < count; ++k) apply_to_one<Operation>(tensors, k);
    return;
  }
  uint4 loaded[inputs];
#pragma unroll
  for (int t = 0; t < inputs; ++t) loaded[t] = reinterpret_cast<const uint4*>(tensors.in[t])[i];
  float in[inputs][packet], out[outputs][packet];
#pragma unroll
  for (int t = 0; t < inputs; ++t) shared::unpack(loaded[t], in[t]);
#pragma unroll
  for (int k = 0; k < packet; ++k) {
    float x[inputs], y[outputs];
#pragma unroll
    for (int t = 0; t < inputs; ++t) x[t] = in[t][k];
    Operation::of(x, y);
#pragma unroll
    for (int t = 0; t < outputs; ++t) out[t][k] = y[t];
  }
#pragma unroll
  for (int t = 0; t < outputs; ++t) reinterpret_cast<uint4*>(tensors.out[t])[i] = shared::pack(out[t]);
}

template <class Operation, int inputs, int outputs>
__global__ __launch_bounds__(threads) void elements_kernel(Tensors<inputs, outputs> tensors, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) apply_to_one<Operation>(tensors, i);
}

class SwigluBackwardPair final : public Workload {
 public:
  explicit SwigluBackwardPair(Setup& setup)
      : tokens_{setup.size("tokens")},
        count_{tokens_ * setup.size("width")},
        gate_{setup.input<bf16>(count_, gates(), {.name = "gate"})},
        up_{setup.input<bf16>(count_, normal(0, 1).set(0, some()), {.name = "up"})},
        gradient_{setup.input<bf16>(count_, normal(0, 0.01f), {.name = "incoming gradient"})},
        dgate_{setup.output<bf16>(count_, {.name = "gradient of gate"})},
        dup_{setup.output<bf16>(count_, {.name = "gradient of up"})},
        product_{setup.output<bf16>(count_, {.name = "product"})},
        activated_{setup.scratch<bf16>(count_, {.name = "silu(gate)"})},
        dactivated_{setup.scratch<bf16>(count_, {.name = "gradient of silu(gate)"})} {}

  Cost cost() const override {
    const auto elements = static_cast<double>(count_);
    return {.flops = 10 * elements, .bytes = 6 * static_cast<double>(gate_.bytes()), .special_functions = 2 * elements};
  }
  double expected_output(int output, std::size_t i) const override {
    const double gate = gate_.host(i), s = 1 / (1 + std::exp(-gate));
    if (output == 0) return gradient_.host(i) * up_.host(i) * s * (1 + gate * (1 - s));
    return gate * s * (output == 1 ? gradient_.host(i) : up_.host(i));
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
  }

  void operators(Launch& launch) {
    by_packets<Silu, 1, 1>(launch, {{gate_}, {activated_}});
    by_packets<Multiply, 2, 1>(launch, {{activated_, up_}, {product_}});
    by_packets<Multiply, 2, 1>(launch, {{gradient_, activated_}, {dup_}});
    by_packets<Multiply, 2, 1>(launch, {{gradient_, up_}, {dactivated_}});
    by_packets<SiluBackward, 2, 1>(launch, {{gate_, dactivated_}, {dgate_}});
  }
  void fused(Launch& launch) { by_packets<SwigluBackward, 3, 3>(launch, all()); }
  void fused_scalar(Launch& launch) { launch(elements_kernel<SwigluBackward, 3, 3>, {blocks(count_), threads}, all(), count_); }

 private:
  // Both zeros of the slope, both ends of the sigmoid, exponentials that overflow, and a subnormal number.
  Pattern gates() const {
    return normal(0, 2)
        .set(1e-39f, some())
        .set(-0.0f, some())
        .set(100, some())
        .set(-100, some())
        .set(20, some())
        .set(-20, some());
  }
  Places some() const { return drawn(Axis{1, count_}, count_ / 65536 + 1); }
  Tensors<3, 3> all() const { return {{gate_, up_, gradient_}, {dgate_, dup_, product_}}; }
  static unsigned blocks(std::size_t items) { return static_cast<unsigned>((items + threads - 1) / threads); }
  template <class Operation, int inputs, int outputs>
  void by_packets(Launch& launch, const Tensors<inputs, outputs>& tensors) {
    launch(packets_kernel<Operation, inputs, outputs>, {blocks((count_ + packet - 1) / packet), threads}, tensors, count_);
  }

  std::size_t tokens_, count_;
  Input<bf16> gate_, up_, gradient_;
  Output<bf16> dgate_, dup_, product_;
  Scratch<bf16> activated_, dactivated_;
};

constexpr KernelLimits in_registers{.local_bytes = 0};

}  // namespace

extern constinit const Pair swiglu_backward{
    .teaches = "the backward pass of a gated activation as one kernel moves 6 tensors where five operators move 14",
    .lesson = "fused",
    .make = make<SwigluBackwardPair>,
    .baseline = {.name = "operators", .run = call<&SwigluBackwardPair::operators>},
    .optimized = variants({{.name = "fused", .run = call<&SwigluBackwardPair::fused>, .kernels = in_registers}}),
    // The gain of fusion without wide accesses.
    .controls = variants({{.name = "fused_scalar", .run = call<&SwigluBackwardPair::fused_scalar>}}),
    .bound = Bound::memory,
    // A rounding to bf16 is 1.6e-3, and the operators make two on the way to each result.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "tokens", .full = 8192}, {.name = "width", .full = 14336, .scales = false}}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_64", "tokens=64"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"tokens_16384", "tokens=16384"},
                    {"tokens_32768", "tokens=32768"}}),
    .edges =
        cases({{"one_element", "tokens=1,width=1"}, {"seven_elements", "tokens=1,width=7"}, {"tail", "tokens=37,width=1111"}}),
};

}  // namespace aisp::ch13
