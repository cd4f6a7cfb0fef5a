// SPDX-License-Identifier: Apache-2.0
// The first half of a transformer's MLP, GELU(X W + b) of 32768 tokens: a product of 275 GFLOP that the tensor cores limit. A
// kernel for bias and GELU after it reads and writes the 268 MB of the result once more. In the epilogue of the product the sums
// are in registers already, and nothing is moved for it.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <cmath>
#include <optional>

#include "gemm/gemm.hpp"
#include "rows.cuh"

namespace aisp::ch09 {
namespace {

using shared::bf16, shared::packet;

constexpr unsigned threads = 256;

// Rows and columns of a result in packets of eight columns, one for each thread.
__global__ __launch_bounds__(threads) void bias_gelu_kernel(uint4* __restrict__ h, const uint4* __restrict__ bias,
                                                            unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  float x[packet], b[packet];
  shared::unpack(h[i], x);
  shared::unpack(bias[i % row_packets], b);
#pragma unroll
  for (int j = 0; j < packet; ++j) x[j] = gemm::Gelu::of(x[j] + b[j]);
  h[i] = shared::pack(x);
}

using Activations = gemm::Operand<bf16>;
using Weights = gemm::Operand<bf16, gemm::Major::mn>;
// Both warpgroups have half of a tile and end it together.
using Cooperative = gemm::Config<Activations, Weights, gemm::InTensorCores, gemm::Shape{.tile_n = 256, .cluster = 2}>;
// Each has a tile of its own, and multiplies while the other is in its epilogue.
using Pingpong = gemm::Config<Activations, Weights, gemm::InTensorCores,
                              gemm::Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}>;
using Plain = gemm::Gemm<Cooperative>;
using Fused = gemm::Gemm<Cooperative, gemm::Bands, gemm::BiasGelu>;
using FusedPingpong = gemm::Gemm<Pingpong, gemm::Bands, gemm::BiasGelu>;

class GemmBiasGeluEpilogue final : public Workload {
 public:
  // Weights of a size that X W has a variance near one, where GELU bends.
  explicit GemmBiasGeluEpilogue(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        x_{setup.input<bf16>(m_ * k_, uniform(-1, 1), {.name = "x"})},
        w_{setup.input<bf16>(k_ * n_, uniform(-largest_weight(), largest_weight()), {.name = "weights"})},
        bias_{setup.input<bf16>(n_, uniform(-1, 1), {.name = "bias"})},
        h_{setup.output<bf16>(m_ * n_, {.name = "h"})},
        gemm_{setup, {.m = m_, .n = n_, .k = k_}},
        gemm_bias_gelu_{setup, {.m = m_, .n = n_, .k = k_, .epilogue = CUBLASLT_EPILOGUE_GELU_BIAS, .bias = bias_.get()}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(h_.size()) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + bias_.bytes() + h_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / n_, column = index % n_;
    double x = bias_.host(column);
    for (std::size_t k = 0; k < k_; ++k) x += x_.host(row * k_ + k) * w_.host(k * n_ + column);
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void tune_gemm(Launch& launch) {
    if (!reproducible_) gemm_.tune(launch, x_, w_, h_);
  }
  void gemm_alone(Launch& launch) { gemm_.run_tuned(launch, x_, w_, h_); }
  void gemm_then_kernel(Launch& launch) {
    gemm_alone(launch);
    bias_gelu(launch);
  }
  void tune_epilogue(Launch& launch) {
    if (!reproducible_) gemm_bias_gelu_.tune(launch, x_, w_, h_);
  }
  void cublaslt_epilogue(Launch& launch) { gemm_bias_gelu_.run_tuned(launch, x_, w_, h_); }

  void describe_plain(Launch&) { describe(plain_); }
  void wgmma_then_kernel(Launch& launch) {
    plain_->run(launch.stream);
    bias_gelu(launch);
  }
  void describe_fused(Launch&) { describe(fused_); }
  void wgmma_epilogue(Launch& launch) { fused_->run(launch.stream, {{bias_}, {}}); }
  void describe_pingpong(Launch&) { describe(pingpong_); }
  void wgmma_pingpong(Launch& launch) { pingpong_->run(launch.stream, {{bias_}, {}}); }

 private:
  float largest_weight() const { return 3 / std::sqrt(static_cast<float>(k_)); }
  template <class Engine>
  void describe(std::optional<Engine>& engine) const {
    if (!engine) engine.emplace(typename Engine::Problem{.a = x_, .b = w_, .c = h_, .m = m_, .n = n_, .k = k_});
  }
  void bias_gelu(Launch& launch) const {
    const std::size_t packets = h_.size() / packet;
    launch(bias_gelu_kernel, {static_cast<unsigned>((packets + threads - 1) / threads), threads},
           reinterpret_cast<uint4*>(h_.get()), reinterpret_cast<const uint4*>(bias_.get()), n_ / packet, packets);
  }

  std::size_t m_, n_, k_;
  Input<bf16> x_, w_, bias_;
  Output<bf16> h_;
  LibraryMatmul gemm_, gemm_bias_gelu_;
  bool reproducible_;
  std::optional<Plain> plain_;
  std::optional<Fused> fused_;
  std::optional<FusedPingpong> pingpong_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair gemm_bias_gelu_epilogue{
    .teaches = "a GEMM holds its results in registers when it ends: an activation there moves no bytes, after it two passes",
    .lesson = "cublaslt_epilogue",
    .make = make<GemmBiasGeluEpilogue>,
    .baseline = {.name = "gemm_then_kernel",
                 .run = call<&GemmBiasGeluEpilogue::gemm_then_kernel>,
                 .prepare = call<&GemmBiasGeluEpilogue::tune_gemm>,
                 .needs = by_cublaslt},
    // The lesson has the same library on both sides, so that nothing moves but the epilogue.
    .optimized = variants({{.name = "cublaslt_epilogue",
                            .run = call<&GemmBiasGeluEpilogue::cublaslt_epilogue>,
                            .prepare = call<&GemmBiasGeluEpilogue::tune_epilogue>,
                            .needs = by_cublaslt},
                           {.name = "wgmma_epilogue",
                            .run = call<&GemmBiasGeluEpilogue::wgmma_epilogue>,
                            .prepare = call<&GemmBiasGeluEpilogue::describe_fused>,
                            .needs = Fused::needs(),
                            .gains_over = "gemm_then_kernel",
                            .kernels = no_spills},
                           {.name = "wgmma_pingpong",
                            .run = call<&GemmBiasGeluEpilogue::wgmma_pingpong>,
                            .prepare = call<&GemmBiasGeluEpilogue::describe_pingpong>,
                            .needs = FusedPingpong::needs(),
                            .kernels = no_spills}}),
    // The engine's product without its epilogue: our product beside the library's, apart from fusion. And the library's product
    // with nothing after it, which no epilogue can be faster than.
    .controls = variants({{.name = "wgmma_then_kernel",
                           .run = call<&GemmBiasGeluEpilogue::wgmma_then_kernel>,
                           .prepare = call<&GemmBiasGeluEpilogue::describe_plain>,
                           .needs = Plain::needs(),
                           .kernels = no_spills},
                          {.name = "gemm_alone",
                           .run = call<&GemmBiasGeluEpilogue::gemm_alone>,
                           .prepare = call<&GemmBiasGeluEpilogue::tune_gemm>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // A rounding to bf16 is 1.6e-3; before the separate kernel there is one more.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "m", .full = 32768},
                    {.name = "n", .full = 4096, .multiple = 64, .most = 16384, .scales = false},
                    {.name = "k", .full = 1024, .multiple = 8, .most = 16384, .scales = false}}),
    // The pass that is saved does not depend on K, so that its share falls as 1 / K.
    .sweep = cases({{"k_256", "k=256"}, {"k_512", "k=512"}, {"k_1024", "k=1024"}, {"k_4096", "k=4096"}}),
    .edges = cases({{"one_row", "m=1,n=64,k=8"}, {"tails", "m=300,n=320,k=72"}, {"one_more_row", "m=4097,n=4160,k=1032"}}),
};

}  // namespace aisp::ch09
