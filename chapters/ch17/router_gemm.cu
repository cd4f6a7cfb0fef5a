// SPDX-License-Identifier: Apache-2.0
// The gate of a mixture of experts: bf16 activations times fp32 weights, in the accuracy of fp32, because near ties decide which
// experts a token gets. In SGEMM the tensor cores are idle. The activations are bf16 already, so that it is enough to write each
// weight as a sum of bf16 numbers: planes that tensor cores multiply. The main loop that adds up both planes in the same
// registers is PromotedEvery (chapters/shared/gemm/planes.cuh).
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "gemm/gemm.hpp"
#include "gemm/planes.cuh"
#include "rows.cuh"

namespace aisp::ch17 {
namespace {

using shared::bf16, shared::packet;
constexpr unsigned threads = 256;
constexpr int chosen = 8;          // experts of a token
constexpr unsigned judged = 1024;  // tokens whose choice is compared with float64

__global__ __launch_bounds__(threads) void widen_kernel(const uint4* __restrict__ x, float4* __restrict__ wide,
                                                        std::size_t packets) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= packets) return;
  float v[packet];
  shared::unpack(x[i], v);
  wide[2 * i] = make_float4(v[0], v[1], v[2], v[3]);
  wide[2 * i + 1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Each weight as a sum of `planes` bf16 numbers, the largest first: b[block][plane][expert in block][k]. One block: all experts.
__global__ __launch_bounds__(threads) void split_kernel(const float* __restrict__ w, bf16* __restrict__ b, int planes,
                                                        unsigned block_experts, unsigned k) {
  const unsigned expert = blockIdx.y, at = blockIdx.x * threads + threadIdx.x;
  if (at >= k) return;
  float rest = w[std::size_t{expert} * k + at];
  for (int plane = 0; plane < planes; ++plane) {
    const bf16 part = __float2bfloat16_rn(rest);
    const std::size_t row =
        std::size_t{expert / block_experts} * planes * block_experts + plane * block_experts + expert % block_experts;
    b[row * k + at] = part;
    rest -= __bfloat162float(part);
  }
}

// logits[token] = sums[token][0] + sums[token][1], by vectors of four experts.
__global__ __launch_bounds__(threads) void add_halves_kernel(const float4* __restrict__ sums, float4* __restrict__ logits,
                                                             unsigned vectors_a_token, std::size_t vectors) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= vectors) return;
  const float4* const from = sums + i + i / vectors_a_token * vectors_a_token;
  const float4 high = from[0], low = from[vectors_a_token];
  logits[i] = make_float4(high.x + low.x, high.y + low.y, high.z + low.z, high.w + low.w);
}

// Computes every stride-th token in float64.
__global__ __launch_bounds__(threads) void reference_kernel(const bf16* x, const float* w, double* logits, unsigned stride,
                                                            unsigned experts, unsigned k) {
  const unsigned expert = blockIdx.x * threads + threadIdx.x;
  if (expert >= experts) return;
  double sum = 0;
  for (unsigned i = 0; i < k; ++i)
    sum += static_cast<double>(__bfloat162float(x[std::size_t{blockIdx.y} * stride * k + i])) * w[std::size_t{expert} * k + i];
  logits[std::size_t{blockIdx.y} * experts + expert] = sum;
}

using Rows = gemm::Operand<bf16>;
// 512 of K are eight stages. A tile has 128 experts in two planes, or 64 in three.
using TwoPlanes = gemm::Config<Rows, Rows, gemm::PromotedEvery<8, 2>, gemm::Shape{.tile_n = 256, .stages = 4, .cluster = 2}>;
using ThreePlanes = gemm::Config<Rows, Rows, gemm::PromotedEvery<8, 3>, gemm::Shape{.tile_n = 192, .stages = 5, .cluster = 2}>;
template <class C, int planes>
using Split = gemm::Gemm<C, gemm::Bands, gemm::OfPlanes<planes>, gemm::RowsStore<float>>;

class RouterGemm final : public Workload {
 public:
  explicit RouterGemm(Setup& setup)
      : tokens_{setup.size("tokens")},
        experts_{setup.size("experts")},
        k_{setup.size("k")},
        x_{setup.input<bf16>(tokens_ * k_, normal(0, 1).set(1, at(Axis{k_, tokens_}, tokens_ / 2)), {.name = "x"})},
        w_{setup.input<float>(experts_ * k_, weights(setup.size("decades") == 1), {.name = "weights", .constant = true})},
        // Experts may be of very different size: each is judged by itself.
        logits_{setup.output<float>(tokens_ * experts_, {.name = "logits", .groups = Axis{1, experts_}})},
        wide_x_{setup.scratch<float>(x_.size(), {.name = "x in fp32"})},
        one_plane_{setup.scratch<bf16>(w_.size(), {.name = "weights in bf16"})},
        halves_of_all_{setup.scratch<bf16>(2 * w_.size(), {.name = "two planes, side by side"})},
        two_planes_{setup.scratch<bf16>(2 * w_.size(), {.name = "two planes, by tiles"})},
        three_planes_{setup.scratch<bf16>(3 * w_.size(), {.name = "three planes, by tiles"})},
        halves_{setup.scratch<float>(2 * logits_.size(), {.name = "sums of both planes"})},
        reference_{setup.scratch<double>(judged_tokens() * experts_, {.name = "float64 logits"})},
        sgemm_{setup, fp32(CUBLAS_COMPUTE_32F)},
        tf32_{setup, fp32(CUBLAS_COMPUTE_32F_FAST_TF32)},
        by_halves_{setup, planes_problem(2)},
        rounded_{setup, planes_problem(1)},
        reproducible_{setup.reproducible()},
        split2_{{.a = x_, .b = two_planes_, .c = logits_, .m = tokens_, .n = 2 * experts_, .k = k_}},
        split3_{{.a = x_, .b = three_planes_, .c = logits_, .m = tokens_, .n = 3 * experts_, .k = k_}} {}

  Cost cost() const override { return cost_of(2); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "split_bf16x3") return cost_of(3);
    if (variant == "weights_bf16") return cost_of(1);
    return cost();
  }
  double expected(std::size_t i) const override {
    return sum(i, [this](std::size_t at) { return w_.host(at); });
  }
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    if (variant == "tf32") return sum(i, [this](std::size_t at) { return rounded_to_tf32(static_cast<float>(w_.host(at))); });
    return sum(i, [this](std::size_t at) {
      return static_cast<double>(__bfloat162float(__float2bfloat16_rn(static_cast<float>(w_.host(at)))));
    });
  }

  void compute_reference(Launch& launch) override {
    launch(reference_kernel, {dim3{blocks(experts_), judged_tokens()}, threads}, x_.get(), w_.get(), reference_, stride(),
           experts_, k_);
    exact_.resize(judged_tokens() * experts_);
    check(cudaMemcpyAsync(exact_.data(), reference_, reference_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  void validate(std::string_view variant) override {
    std::vector<float> of_token(experts_);
    std::size_t same = 0;
    for (std::size_t token = 0; token < judged_tokens(); ++token) {
      check(cudaMemcpy(of_token.data(), logits_.get() + token * stride() * experts_, experts_ * sizeof(float),
                       cudaMemcpyDeviceToHost));
      same += winners(of_token.data()) == winners(exact_.data() + token * experts_);
    }
    const double share = static_cast<double>(same) / static_cast<double>(judged_tokens());
    // If the planted twins are the eighth and the ninth, no sum in fp32 is sure.
    if (variant != "weights_bf16" && variant != "tf32" && share < 0.995)
      throw std::runtime_error{"only " + std::to_string(100 * share) +
                               " % of the tokens get the experts that float64 gives them"};
    same_choice_[std::string{variant}] = 100 * share;
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("tokens", static_cast<double>(tokens_), "tokens/s");
    if (const auto found = same_choice_.find(std::string{variant}); found != same_choice_.end())
      metrics.report("same_experts", found->second, "% of tokens", Metrics::Better::higher);
  }

  void cast_sgemm(Launch& launch) {
    widen(launch);
    sgemm_alone(launch);
  }
  void sgemm_alone(Launch& launch) { multiply(sgemm_, launch, wide_x_, w_, logits_); }
  void tune_sgemm(Launch& launch) { tune(sgemm_, launch, wide_x_, w_, logits_); }
  void widen_once(Launch& launch) {
    widen(launch);
    tune_sgemm(launch);
  }

  void split_for_library(Launch& launch) {
    split(launch, halves_of_all_, 2, experts_);
    tune(by_halves_, launch, x_, halves_of_all_, halves_);
  }
  void planes_cublas(Launch& launch) {
    multiply(by_halves_, launch, x_, halves_of_all_, halves_);
    const std::size_t vectors = logits_.size() / 4;
    launch(add_halves_kernel, {blocks(vectors), threads}, reinterpret_cast<const float4*>(halves_.get()),
           reinterpret_cast<float4*>(logits_.get()), experts_ / 4, vectors);
  }
  void split_in_two(Launch& launch) { split(launch, two_planes_, 2, TwoPlanes::tile_n / 2); }
  void split_bf16x2(Launch& launch) { split2_.run(launch.stream); }
  void split_in_three(Launch& launch) { split(launch, three_planes_, 3, ThreePlanes::tile_n / 3); }
  void split_bf16x3(Launch& launch) { split3_.run(launch.stream); }

  void round_weights(Launch& launch) {
    split(launch, one_plane_, 1, experts_);
    tune(rounded_, launch, x_, one_plane_, logits_);
  }
  void weights_bf16(Launch& launch) { multiply(rounded_, launch, x_, one_plane_, logits_); }
  void tune_tf32(Launch& launch) { tune(tf32_, launch, wide_x_, w_, logits_); }
  void tf32(Launch& launch) {
    widen(launch);
    multiply(tf32_, launch, wide_x_, w_, logits_);
  }

 private:
  static unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }
  unsigned judged_tokens() const { return static_cast<unsigned>(std::min<std::size_t>(tokens_, judged)); }
  std::size_t stride() const { return tokens_ / judged_tokens(); }
  Cost cost_of(int planes) const {
    return {.flops = 2.0 * planes * static_cast<double>(tokens_ * experts_) * static_cast<double>(k_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + logits_.bytes())};
  }
  MatmulProblem fp32(cublasComputeType_t compute) const {
    return {.m = tokens_,
            .n = experts_,
            .k = k_,
            .operands = CUDA_R_32F,
            .result = CUDA_R_32F,
            .compute = compute,
            .b_is_transposed = true};
  }
  MatmulProblem planes_problem(std::size_t planes) const {
    return {.m = tokens_, .n = planes * experts_, .k = k_, .result = CUDA_R_32F, .b_is_transposed = true};
  }
  void multiply(const LibraryMatmul& product, Launch& launch, const void* a, const void* b, void* c) const {
    if (reproducible_) product.run(launch, a, b, c);
    else product.run_tuned(launch, a, b, c);
  }
  void tune(const LibraryMatmul& product, Launch& launch, const void* a, const void* b, void* c) const {
    if (!reproducible_) product.tune(launch, a, b, c);
  }
  void widen(Launch& launch) const {
    const std::size_t packets = x_.size() / packet;
    launch(widen_kernel, {blocks(packets), threads}, reinterpret_cast<const uint4*>(x_.get()),
           reinterpret_cast<float4*>(wide_x_.get()), packets);
  }
  void split(Launch& launch, bf16* to, int planes, std::size_t block_experts) const {
    launch(split_kernel, {dim3{blocks(k_), static_cast<unsigned>(experts_)}, threads}, w_.get(), to, planes, block_experts, k_);
  }

  // Expert 1 is expert 0 but for a hundred-thousandth, experts 2 and 3 have a second half that takes away the first, but for a
  // thousandth: a token of ones leaves them nearly nothing. With `decades` each expert is larger than the one before, from 1e-3
  // to 1e3.
  HostFill<float> weights(bool decades) const {
    return [k = k_, experts = experts_, decades](std::span<float> w, std::uint64_t seed) {
      const Pattern drawn = normal(0, 0.02f);
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = pattern_value<float>(drawn, seed, i);
      for (std::size_t at = 0; at < k; ++at) w[k + at] = w[at] + 1e-5f * w[k + at];
      for (std::size_t expert = 2; expert < std::min<std::size_t>(4, experts); ++expert)
        for (std::size_t at = k / 2; at < k; ++at) w[expert * k + at] = 1e-3f * w[expert * k + at] - w[expert * k + at - k / 2];
      for (std::size_t i = 0; decades && i < w.size(); ++i)
        w[i] *= std::pow(10.0f, 6 * static_cast<float>(i / k) / static_cast<float>(experts) - 3);
    };
  }
  static double rounded_to_tf32(float value) {
    return std::bit_cast<float>((std::bit_cast<unsigned>(value) + 0x1000u) & 0xFFFFE000u);
  }
  template <class Weight>
  double sum(std::size_t i, Weight weight) const {
    double all = 0;
    for (std::size_t k = 0; k < k_; ++k) all += x_.host(i / experts_ * k_ + k) * weight(i % experts_ * k_ + k);
    return all;
  }
  // The numbers of the experts with the largest logits, in their own order.
  template <class Value>
  std::array<int, chosen> winners(const Value* logits) const {
    std::vector<int> order(experts_);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(),
                      [logits](int a, int b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    std::array<int, chosen> first{};
    std::copy_n(order.begin(), chosen, first.begin());
    std::ranges::sort(first);
    return first;
  }

  std::size_t tokens_, experts_, k_;
  Input<bf16> x_;
  Input<float> w_;  // [expert][k]
  Output<float> logits_;
  Scratch<float> wide_x_;
  Scratch<bf16> one_plane_, halves_of_all_, two_planes_, three_planes_;
  Scratch<float> halves_;
  Scratch<double> reference_;
  LibraryMatmul sgemm_, tf32_, by_halves_, rounded_;
  bool reproducible_;
  Split<TwoPlanes, 2> split2_;
  Split<ThreePlanes, 3> split3_;
  std::vector<double> exact_;
  std::map<std::string, double> same_choice_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr KernelLimits no_spills{.local_bytes = 0};
// Sums of 7168 products that stay in the tensor cores to the end, which cut off what they round, are off by 1.1e-5.
constexpr Tolerance never_promoted = within(2e-5);

}  // namespace

extern constinit const Pair router_gemm{
    .teaches = "activations are bf16 already, so weights in two bf16 planes give tensor cores the accuracy of an fp32 gate",
    .lesson = "planes_cublas",
    .make = make<RouterGemm>,
    .baseline = {.name = "cast_sgemm",
                 .run = call<&RouterGemm::cast_sgemm>,
                 .prepare = call<&RouterGemm::tune_sgemm>,
                 .needs = by_cublaslt},
    .optimized = variants({{.name = "planes_cublas",
                            .run = call<&RouterGemm::planes_cublas>,
                            .prepare = call<&RouterGemm::split_for_library>,
                            .needs = by_cublaslt,
                            .tolerance = never_promoted},
                           {.name = "split_bf16x2",
                            .run = call<&RouterGemm::split_bf16x2>,
                            .prepare = call<&RouterGemm::split_in_two>,
                            .needs = Split<TwoPlanes, 2>::needs(),
                            .kernels = no_spills},
                           {.name = "split_bf16x3",
                            .run = call<&RouterGemm::split_bf16x3>,
                            .prepare = call<&RouterGemm::split_in_three>,
                            .needs = Split<ThreePlanes, 3>::needs(),
                            .kernels = no_spills}}),
    // The cast's share of the gain; and the one plane that serving engines run, which gives other experts to some tokens.
    .controls = variants({{.name = "sgemm_alone",
                           .run = call<&RouterGemm::sgemm_alone>,
                           .prepare = call<&RouterGemm::widen_once>,
                           .needs = by_cublaslt,
                           .outputs = no_outputs},
                          {.name = "weights_bf16",
                           .run = call<&RouterGemm::weights_bf16>,
                           .prepare = call<&RouterGemm::round_weights>,
                           .needs = by_cublaslt,
                           .changes_precision = true,
                           .tolerance = never_promoted}}),
    .libraries = variants({{.name = "tf32",
                            .run = call<&RouterGemm::tf32>,
                            .prepare = call<&RouterGemm::tune_tf32>,
                            .needs = by_cublaslt,
                            .changes_precision = true,
                            .tolerance = tf32_operands}}),
    .bound = Bound::compute,
    // Two planes leave 16 bits of a weight, 2e-6, and sums of 7168 products in fp32 about as much.
    .tolerance = within(1e-5),
    .sizes = sizes({{.name = "tokens", .full = 16384},
                    {.name = "experts", .full = 256, .multiple = 128, .most = 1024, .scales = false},
                    {.name = "k", .full = 7168, .multiple = 64, .most = 16384, .scales = false},
                    option("decades")}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_16384", "tokens=16384"},
                    {"hpc_ops", "tokens=8192,k=6144,experts=768"}}),
    .edges = cases({{"one_token", "tokens=1,k=64,experts=128"},
                    {"tails", "tokens=1601,k=1088,experts=384"},
                    {"six_decades", "tokens=300,k=2048,decades=1"}}),
};

}  // namespace aisp::ch17
