// SPDX-License-Identifier: Apache-2.0
// SwiGLU, SiLU(X Wg) * (X Wu), of 32768 tokens as in an MLP of Qwen3-0.6B: two products of one input whose results meet element
// by element. As one product with the columns of both side by side, 403 MB are written, read again and halved. With the columns
// of the two interleaved by eights, partners lie in one thread's registers when the product ends, and only the half is written.
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

// Packets of eight columns, one for each thread. A row of the products has row_packets of the gate and then as many of `up`.
__global__ __launch_bounds__(threads) void swiglu_kernel(const uint4* __restrict__ products, uint4* __restrict__ a,
                                                         unsigned row_packets, unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const uint4* const from = products + i + std::size_t{i / row_packets} * row_packets;
  float gate[packet], up[packet];
  shared::unpack(from[0], gate);
  shared::unpack(from[row_packets], up);
#pragma unroll
  for (int j = 0; j < packet; ++j) gate[j] = gemm::SwiGlu::of(gate[j], up[j]);
  a[i] = shared::pack(gate);
}

// Eight columns of the gate, then the same eight of `up`, and so on.
__global__ __launch_bounds__(threads) void interleave_kernel(const uint4* __restrict__ side_by_side,
                                                             uint4* __restrict__ interleaved, unsigned row_packets,
                                                             unsigned packets) {
  const unsigned i = blockIdx.x * threads + threadIdx.x;
  if (i >= packets) return;
  const unsigned of_both = 2 * row_packets, in_row = i % of_both;
  interleaved[i] = side_by_side[i - in_row + in_row % 2 * row_packets + in_row / 2];
}

using Activations = gemm::Operand<bf16>;
using Weights = gemm::Operand<bf16, gemm::Major::mn>;
using Cooperative = gemm::Config<Activations, Weights, gemm::InTensorCores, gemm::Shape{.tile_n = 256, .cluster = 2}>;
using Pingpong = gemm::Config<Activations, Weights, gemm::InTensorCores,
                              gemm::Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}>;
using Plain = gemm::Gemm<Cooperative>;
using Fused = gemm::Gemm<Cooperative, gemm::Bands, gemm::SwiGlu>;
using FusedPingpong = gemm::Gemm<Pingpong, gemm::Bands, gemm::SwiGlu>;

class SwigluDualGemm final : public Workload {
 public:
  // Weights of a size that both products have a variance near one.
  explicit SwigluDualGemm(Setup& setup)
      : tokens_{setup.size("tokens")},
        depth_{setup.size("depth")},
        width_{setup.size("width")},
        x_{setup.input<bf16>(tokens_ * depth_, uniform(-1, 1), {.name = "x"})},
        // [depth][gate, up], as serving frameworks keep them. Constant: they are interleaved in `prepare`.
        w_{setup.input<bf16>(depth_ * 2 * width_, uniform(-largest_weight(), largest_weight()),
                             {.name = "weights of gate and up", .constant = true})},
        interleaved_{setup.scratch<bf16>(w_.size(), {.name = "interleaved weights"})},
        products_{setup.scratch<bf16>(tokens_ * 2 * width_, {.name = "both products"})},
        a_{setup.output<bf16>(tokens_ * width_, {.name = "a"})},
        gemm_{setup, {.m = tokens_, .n = 2 * width_, .k = depth_}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override {
    return {.flops = 4.0 * static_cast<double>(a_.size()) * static_cast<double>(depth_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + a_.bytes())};
  }
  double expected(std::size_t index) const override {
    const std::size_t row = index / width_, column = index % width_;
    double gate = 0, up = 0;
    for (std::size_t k = 0; k < depth_; ++k) {
      const double x = x_.host(row * depth_ + k);
      gate += x * w_.host(k * 2 * width_ + column);
      up += x * w_.host(k * 2 * width_ + width_ + column);
    }
    return gate / (1 + std::exp(-gate)) * up;
  }

  void tune(Launch& launch) {
    if (!reproducible_) gemm_.tune(launch, x_, w_, products_);
  }
  void gemm_alone(Launch& launch) { gemm_.run_tuned(launch, x_, w_, products_); }
  void packed_gemm_then_kernel(Launch& launch) {
    gemm_alone(launch);
    swiglu(launch);
  }

  void interleave(Launch& launch) {
    const std::size_t packets = w_.size() / packet;
    launch(interleave_kernel, {blocks(packets), threads}, reinterpret_cast<const uint4*>(w_.get()),
           reinterpret_cast<uint4*>(interleaved_.get()), width_ / packet, packets);
  }
  void prepare_fused(Launch& launch) {
    interleave(launch);
    describe(fused_, interleaved_, a_);
  }
  void interleaved_epilogue(Launch& launch) { fused_->run(launch.stream); }
  void prepare_pingpong(Launch& launch) {
    interleave(launch);
    describe(pingpong_, interleaved_, a_);
  }
  void interleaved_pingpong(Launch& launch) { pingpong_->run(launch.stream); }
  void describe_plain(Launch&) { describe(plain_, w_, products_); }
  void wgmma_then_kernel(Launch& launch) {
    plain_->run(launch.stream);
    swiglu(launch);
  }

 private:
  float largest_weight() const { return 3 / std::sqrt(static_cast<float>(depth_)); }
  static unsigned blocks(std::size_t packets) { return static_cast<unsigned>((packets + threads - 1) / threads); }
  template <class Engine>
  void describe(std::optional<Engine>& engine, const bf16* weights, bf16* to) const {
    if (engine) return;
    engine.emplace(typename Engine::Problem{.a = x_, .b = weights, .c = to, .m = tokens_, .n = 2 * width_, .k = depth_});
  }
  void swiglu(Launch& launch) const {
    const std::size_t packets = a_.size() / packet;
    launch(swiglu_kernel, {blocks(packets), threads}, reinterpret_cast<const uint4*>(products_.get()),
           reinterpret_cast<uint4*>(a_.get()), width_ / packet, packets);
  }

  std::size_t tokens_, depth_, width_;
  Input<bf16> x_, w_;
  Scratch<bf16> interleaved_, products_;
  Output<bf16> a_;
  LibraryMatmul gemm_;
  bool reproducible_;
  std::optional<Plain> plain_;
  std::optional<Fused> fused_;
  std::optional<FusedPingpong> pingpong_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair swiglu_dual_gemm{
    .teaches = "where two products meet element by element, lay out the weights so that they meet in one thread's registers",
    .lesson = "interleaved_epilogue",
    .make = make<SwigluDualGemm>,
    .baseline = {.name = "packed_gemm_then_kernel",
                 .run = call<&SwigluDualGemm::packed_gemm_then_kernel>,
                 .prepare = call<&SwigluDualGemm::tune>,
                 .needs = by_cublaslt},
    // Behind the lesson, the same with the epilogue of one warpgroup under the products of the other.
    .optimized = variants({{.name = "interleaved_epilogue",
                            .run = call<&SwigluDualGemm::interleaved_epilogue>,
                            .prepare = call<&SwigluDualGemm::prepare_fused>,
                            .needs = Fused::needs(),
                            .kernels = no_spills},
                           {.name = "interleaved_pingpong",
                            .run = call<&SwigluDualGemm::interleaved_pingpong>,
                            .prepare = call<&SwigluDualGemm::prepare_pingpong>,
                            .needs = FusedPingpong::needs(),
                            .kernels = no_spills}}),
    // The engine's product with all columns stored: our product beside the library's, apart from fusion. And the library's
    // product with nothing after it.
    .controls = variants({{.name = "wgmma_then_kernel",
                           .run = call<&SwigluDualGemm::wgmma_then_kernel>,
                           .prepare = call<&SwigluDualGemm::describe_plain>,
                           .needs = Plain::needs(),
                           .kernels = no_spills},
                          {.name = "gemm_alone",
                           .run = call<&SwigluDualGemm::gemm_alone>,
                           .prepare = call<&SwigluDualGemm::tune>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // A rounding to bf16 is 1.6e-3; before the separate kernel each factor has one more, and the gate's grows in SiLU.
    .tolerance = within(5e-3),
    .sizes = sizes({{.name = "tokens", .full = 32768},
                    {.name = "depth", .full = 1024, .multiple = 8, .most = 16384, .scales = false},
                    {.name = "width", .full = 3072, .multiple = 32, .most = 16384, .scales = false}}),
    .edges = cases({{"one_token", "tokens=1,depth=8,width=32"},
                    {"tails", "tokens=300,depth=72,width=160"},
                    {"one_more_token", "tokens=4097,depth=1032,width=3104"}}),
};

}  // namespace aisp::ch09
