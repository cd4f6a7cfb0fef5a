// SPDX-License-Identifier: Apache-2.0
// GELU(X W) in FP8, 16384 x 8192 with K = 2048: 0.55 TFLOP, and a result of 134 MB for the next product. A scale made of the
// result's own largest magnitude is known when all of it is, so that a tensor in bf16 goes through memory four times before the
// last pass can round it. With the scale of an earlier step the product's epilogue rounds what it has in registers, and takes the
// magnitude for the step that comes.
#include <cuda_fp8.h>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "gelu_epilogue.cuh"
#include "gelu_product_reference.cuh"
#include "gemm/gemm.hpp"
#include "quantized_rows.cuh"
#include "row_cache.hpp"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
constexpr unsigned threads = 256, blocks_per_sm = 8;
constexpr int band = 16;  // rows of clusters

// The largest result is planted: one row of x and one of the weights are constants, whose product is beyond all others. So the
// earlier step's magnitude is this one's, too, and the codes of both ways of scaling can be compared.
constexpr float largest_result = 12, planted_weight = 112;
// Times too small, in the order of the option `scale`: right, values saturate, values are subnormal.
constexpr float scale_errors[] = {1, 4, 1.0f / 64};

__device__ __forceinline__ float scale_of(float amax) { return amax > 0 ? largest_e4m3 / amax : 1; }

// Sums times the scale of a magnitude that is this step's own.
struct ScaledToFit {
  static constexpr int narrowing = 1;
  const float* amax = nullptr;
  template <int count>
  __device__ __forceinline__ void operator()(float (&sums)[count], const gemm::Fragment&) const {
    const float by = scale_of(*amax);
#pragma unroll
    for (float& sum : sums) sum *= by;
  }
};

__device__ __forceinline__ void record(float largest, float* amax) {
  __shared__ float maxima[device::largest_block_in_warps];
  largest = device::block_max(largest, 0.0f, maxima);
  // Floats that are not negative are ordered as their bits are.
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(largest));
}

// Each `Out` is eight results: uint4, bf16 for another pass; or uint2, codes under a known scale.
template <class Out>
__global__ __launch_bounds__(threads) void gelu_kernel(const uint4* __restrict__ product, Out* __restrict__ out,
                                                       const float* __restrict__ scale, float* amax, unsigned packets) {
  float largest = 0;
#pragma unroll 4
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < packets; i += gridDim.x * threads) {
    float x[packet];
    shared::unpack(product[i], x);
#pragma unroll
    for (float& value : x) value = SigmoidGelu::of(value);
    largest = fmaxf(largest, largest_magnitude(x));
    if constexpr (sizeof(Out) == sizeof(uint4)) out[i] = shared::pack(x);
    else out[i] = pack_e4m3(x, *scale);
  }
  record(largest, amax);
}

__global__ __launch_bounds__(threads) void cast_kernel(const uint4* __restrict__ in, uint2* __restrict__ codes,
                                                       const float* __restrict__ amax, unsigned packets) {
  const float scale = scale_of(*amax);
#pragma unroll 4
  for (unsigned i = blockIdx.x * threads + threadIdx.x; i < packets; i += gridDim.x * threads) {
    float x[packet];
    shared::unpack(in[i], x);
    codes[i] = pack_e4m3(x, scale);
  }
}

__global__ __launch_bounds__(threads) void count_saturated_kernel(const unsigned* codes, std::size_t words,
                                                                  unsigned long long* counts) {
  constexpr unsigned magnitude = 0x7F7F7F7F, largest = 0x7E7E7E7E;
  unsigned saturated = 0, not_numbers = 0;
  for (std::size_t i = blockIdx.x * threads + threadIdx.x; i < words; i += gridDim.x * threads) {
    saturated += __popc(__vcmpeq4(codes[i] & magnitude, largest)) / 8;
    not_numbers += __popc(__vcmpeq4(codes[i] & magnitude, magnitude)) / 8;
  }
  if (saturated > 0) atomicAdd(counts, saturated);
  if (not_numbers > 0) atomicAdd(counts + 1, not_numbers);
}

using Operand = gemm::Operand<e4m3>;
// Both warpgroups have half of a tile: one adds to fp32 while the other multiplies.
struct Promoted : gemm::Config<Operand, Operand, gemm::Promoted, gemm::Shape{.tile_n = 192, .stages = 5, .cluster = 2}> {};
// Each has a tile of its own, and rounds it while the other multiplies.
template <class Mainloop>
struct InTurns
    : gemm::Config<Operand, Operand, Mainloop, gemm::Shape{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2}> {};

template <class Last>
using Activated = gemm::Chain<gemm::Scaled, gemm::Chain<SigmoidGelu, Last>>;
template <class Last, class Store = gemm::TmaStore<e4m3, 3>>
using Product = gemm::Gemm<Promoted, gemm::Bands, Activated<Last>, Store>;
template <bool with_amax>
using Quantizing = gemm::Gemm<Promoted, gemm::Bands, QuantizedGelu<with_amax>, gemm::TmaStore<e4m3, 3>>;
template <class Mainloop>
using ProductInTurns = gemm::Gemm<InTurns<Mainloop>, gemm::Bands, Activated<gemm::QuantizeE4m3>, gemm::TmaStore<e4m3, 1>>;

class Fp8DelayedScaling final : public Workload {
 public:
  explicit Fp8DelayedScaling(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        planted_x_{std::exp2(std::round(std::log2(2048 / static_cast<float>(k_))))},
        alpha_{largest_result / (planted_x_ * planted_weight * static_cast<float>(k_))},
        // Outlier channels, of which some values saturate; a token of zeros and one of subnormals.
        x_{setup.input<e4m3>(m_ * k_,
                             normal(0, 1)
                                 .times(20, 100, drawn(Axis{1, k_}, 8))
                                 .set(-0.0f, drawn(Axis{1, m_ * k_}, m_))
                                 .times(0.002f, at(Axis{k_, m_}, 1))
                                 .set(0, at(Axis{k_, m_}, 0))
                                 .set(planted_x_, drawn(Axis{k_, m_}, 1)),
                             {.name = "x"})},
        w_{setup.input<e4m3>(n_ * k_, normal(0, 90).set(0, at(Axis{k_, n_}, 3)).set(planted_weight, drawn(Axis{k_, n_}, 1)),
                             {.name = "weights"})},
        earlier_scale_{setup.input<float>(1, constant(earlier_scale(setup)), {.name = "scale of an earlier step"})},
        y_{setup.output<e4m3>(m_ * n_, {.name = "y"})},
        amax_{setup.scratch<float>(1, {.name = "largest magnitude"})},
        product_{setup.scratch<bf16>(m_ * n_, {.name = "product"})},
        activated_{setup.scratch<bf16>(m_ * n_, {.name = "activated"})},
        found_{setup.scratch<unsigned long long>(3, {.name = "of the reference"})},
        counts_{setup.scratch<unsigned long long>(2, {.name = "saturated codes"})},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_, .operands = CUDA_R_8F_E4M3, .b_is_transposed = true}},
        cublaslt_epilogue_{setup, with_epilogue(false)},
        cublaslt_epilogue_fast_{setup, with_epilogue(true)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override { return cost_of(1); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant == "current_epilogue" ? 2 : 1); }

  void compute_reference(Launch& launch) override {
    auto* const found = reinterpret_cast<GeluProduct*>(found_.get());
    compute_gelu_product(launch.stream, x_, w_, m_, n_, k_, double{alpha_}, earlier_scale_.host(0), found);
    check(cudaMemcpyAsync(&reference_, found, sizeof reference_, cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    static_assert(sizeof(double) == sizeof reference_.amax_bits);
    reference_amax_ = std::bit_cast<double>(reference_.amax_bits);
  }
  double expected(std::size_t i) const override { return code(i, double{largest_e4m3} / reference_amax_); }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return code(i, earlier_scale_.host(0)); }
  // The magnitude, and how many codes are the largest. Such a code may be a value that fits; what is beyond has to be one.
  void validate(std::string_view variant) override {
    if (variant == "plain_bf16") return;
    const bool through_bf16 = variant == "separate_kernels" || variant == "delayed_cast";
    if (variant != "wgmma_epilogue") {
      float amax = 0;
      check(cudaMemcpy(&amax, amax_, sizeof amax, cudaMemcpyDeviceToHost));
      const double most = through_bf16 ? 4e-3 : 1e-3;  // half of bf16's last bit is up to 2^-8
      if (!(std::abs(double{amax} - reference_amax_) <= most * reference_amax_))
        throw std::runtime_error{"the largest magnitude is " + std::to_string(amax) + ", expected " +
                                 std::to_string(reference_amax_)};
    }
    if (variant == "separate_kernels" || variant == "current_epilogue") return;
    check(cudaMemset(counts_, 0, counts_.bytes()));
    launch_kernel(nullptr, count_saturated_kernel, everywhere(), reinterpret_cast<const unsigned*>(y_.get()),
                  y_.bytes() / sizeof(unsigned), counts_.get());
    unsigned long long counts[2];
    check(cudaMemcpy(counts, counts_, sizeof counts, cudaMemcpyDeviceToHost));
    const auto [saturated, not_numbers] = counts;
    if (not_numbers > 0) throw std::runtime_error{std::to_string(not_numbers) + " codes are no numbers"};
    if (saturated < reference_.saturated_at_least || saturated > reference_.saturated_at_most)
      throw std::runtime_error{std::to_string(saturated) + " codes are the largest, and should be " +
                               std::to_string(reference_.saturated_at_least) + " to " +
                               std::to_string(reference_.saturated_at_most)};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(m_), "tokens/s");
  }

  void tune(Launch& launch) {
    if (!reproducible_) cublaslt_.tune(launch, x_, w_, product_);
  }
  void separate_kernels(Launch& launch) {
    multiply(launch);
    launch(gelu_kernel<uint4>, everywhere(), packets(product_), packets(activated_), nullptr, amax_, m_ * n_ / packet);
    launch(cast_kernel, everywhere(), packets(activated_), codes(), amax_, m_ * n_ / packet);
  }
  void delayed_cast(Launch& launch) {
    multiply(launch);
    launch(gelu_kernel<uint2>, everywhere(), packets(product_), codes(), earlier_scale_, amax_, m_ * n_ / packet);
  }

  void describe_no_amax(Launch&) { describe(no_amax_, y_); }
  void wgmma_epilogue(Launch& launch) { no_amax_->run(launch.stream, {alpha_, earlier_scale_}); }
  void describe_amax(Launch&) { describe(with_amax_, y_); }
  void epilogue_amax(Launch& launch) {
    reset_amax(launch);
    with_amax_->run(launch.stream, {alpha_, earlier_scale_, amax_});
  }
  void describe_fast(Launch&) { describe(fast_, y_); }
  void epilogue_amax_fast(Launch& launch) { run_with_amax(launch, *fast_); }
  void describe_in_turns(Launch&) { describe(in_turns_, y_); }
  void promoted_in_turns(Launch& launch) { run_with_amax(launch, *in_turns_); }

  void describe_current(Launch&) {
    describe(only_amax_, nullptr);
    describe(fitted_, y_);
  }
  void current_epilogue(Launch& launch) {
    reset_amax(launch);
    only_amax_->run(launch.stream, {{alpha_}, {{}, {amax_}}});
    fitted_->run(launch.stream, {{alpha_}, {{}, {amax_}}});
  }
  void describe_plain(Launch&) { describe(plain_, product_); }
  void plain_bf16(Launch& launch) { plain_->run(launch.stream, {alpha_}); }

  void tune_epilogue(Launch& launch) { cublaslt_epilogue_.tune(launch, x_, w_, y_); }
  void cublaslt_epilogue(Launch& launch) {
    reset_amax(launch);
    cublaslt_epilogue_.run_tuned(launch, x_, w_, y_, alpha_);
  }
  void tune_epilogue_fast(Launch& launch) { cublaslt_epilogue_fast_.tune(launch, x_, w_, y_); }
  void cublaslt_epilogue_fast(Launch& launch) {
    reset_amax(launch);
    cublaslt_epilogue_fast_.run_tuned(launch, x_, w_, y_, alpha_);
  }

 private:
  float earlier_scale(const Setup& setup) const { return largest_e4m3 / largest_result * scale_errors[setup.size("scale")]; }
  MatmulProblem with_epilogue(bool fast) const {
    return {.m = m_,
            .n = n_,
            .k = k_,
            .operands = CUDA_R_8F_E4M3,
            .result = CUDA_R_8F_E4M3,
            .b_is_transposed = true,
            .fast_accumulation = fast,
            .epilogue = CUBLASLT_EPILOGUE_GELU,
            .result_scale = earlier_scale_,
            .result_amax = amax_};
  }
  Cost cost_of(double products) const {
    return {.flops = products * 2 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = Math::fp8,
            .bytes = static_cast<double>(x_.bytes() + w_.bytes() + y_.bytes())};
  }
  double code(std::size_t i, double scale) const {
    const std::size_t row = i / n_, column = i % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(row * k_ + k) * w_.host(column * k_ + k);
    const auto largest = double{largest_e4m3};
    return std::clamp(gelu(sum * double{alpha_}) * scale, -largest, largest);
  }

  template <class Engine>
  void describe(std::optional<Engine>& engine, typename Engine::Out* c) const {
    if (!engine) engine.emplace(typename Engine::Problem{.a = x_, .b = w_, .c = c, .m = m_, .n = n_, .k = k_}, gemm::Bands{band});
  }
  void reset_amax(Launch& launch) const { check(cudaMemsetAsync(amax_, 0, amax_.bytes(), launch.stream)); }
  template <class Engine>
  void run_with_amax(Launch& launch, const Engine& engine) const {
    reset_amax(launch);
    engine.run(launch.stream, {{alpha_}, {{}, {earlier_scale_, amax_}}});
  }
  void multiply(Launch& launch) const {
    reset_amax(launch);
    cublaslt_.run_tuned(launch, x_, w_, product_, alpha_);
  }
  static Grid everywhere() { return {.blocks = multiprocessors() * blocks_per_sm, .threads = threads}; }
  static uint4* packets(const Scratch<bf16>& of) { return reinterpret_cast<uint4*>(of.get()); }
  uint2* codes() const { return reinterpret_cast<uint2*>(y_.get()); }

  std::size_t m_, n_, k_;
  float planted_x_, alpha_;
  Input<e4m3> x_, w_;  // x[m][k], w[n][k]
  Input<float> earlier_scale_;
  Output<e4m3> y_;
  Scratch<float> amax_;
  Scratch<bf16> product_, activated_;
  Scratch<unsigned long long> found_, counts_;
  LibraryMatmul cublaslt_, cublaslt_epilogue_, cublaslt_epilogue_fast_;
  bool reproducible_;
  GeluProduct reference_{};
  double reference_amax_ = 0;
  std::optional<Quantizing<false>> no_amax_;
  std::optional<Quantizing<true>> with_amax_;
  std::optional<ProductInTurns<gemm::InTensorCores>> fast_;
  std::optional<ProductInTurns<gemm::Promoted>> in_turns_;
  std::optional<Product<gemm::Amax, gemm::NoStore>> only_amax_;
  std::optional<Product<ScaledToFit>> fitted_;
  std::optional<gemm::Gemm<Promoted, gemm::Bands, gemm::Scaled>> plain_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}};
constexpr Needs on_wgmma{.min_sm = 90, .max_sm = 90, .dsmem = true};
constexpr KernelLimits nothing_spilled{.local_bytes = 0};

// Rounding to e4m3 is 0.026, at most 0.06 of a value. The tensor cores keep 14 bits of a sum, those of its largest product:
// beside an outlier of 100 the others lose 1e-3 of the result's deviation, the worst 1e-2, and near zero that is many steps of
// the type.
constexpr Tolerance rounded_to_codes = within(0.03, 0.08);

template <Method run, Method prepare>
constexpr Variant fused(std::string_view name) {
  return {.name = name, .run = run, .prepare = prepare, .needs = on_wgmma, .changes_precision = true, .kernels = nothing_spilled};
}

}  // namespace

extern constinit const Pair fp8_delayed_scaling{
    .teaches = "a scale of its own data is known too late; an earlier step's lets the product's epilogue round at once",
    .lesson = "wgmma_epilogue",
    .make = make<Fp8DelayedScaling>,
    .baseline = {.name = "separate_kernels",
                 .run = call<&Fp8DelayedScaling::separate_kernels>,
                 .prepare = call<&Fp8DelayedScaling::tune>,
                 .needs = by_cublaslt},
    .optimized = variants(
        {{.name = "delayed_cast",
          .run = call<&Fp8DelayedScaling::delayed_cast>,
          .prepare = call<&Fp8DelayedScaling::tune>,
          .needs = by_cublaslt,
          .changes_precision = true},
         fused<call<&Fp8DelayedScaling::wgmma_epilogue>, call<&Fp8DelayedScaling::describe_no_amax>>("wgmma_epilogue"),
         fused<call<&Fp8DelayedScaling::epilogue_amax>, call<&Fp8DelayedScaling::describe_amax>>("epilogue_amax"),
         fused<call<&Fp8DelayedScaling::epilogue_amax_fast>, call<&Fp8DelayedScaling::describe_fast>>("epilogue_amax_fast")}),
    .controls = variants(
        {// The scale of this step's own magnitude, without a tensor in bf16: what is known late costs a product.
         {.name = "current_epilogue",
          .run = call<&Fp8DelayedScaling::current_epilogue>,
          .prepare = call<&Fp8DelayedScaling::describe_current>,
          .needs = on_wgmma,
          .kernels = nothing_spilled},
         // Rounding is hidden behind another tile's products, and additions to fp32 are not.
         fused<call<&Fp8DelayedScaling::promoted_in_turns>, call<&Fp8DelayedScaling::describe_in_turns>>("promoted_in_turns"),
         // Our product with nothing after it, and a result that is twice as long.
         {.name = "plain_bf16",
          .run = call<&Fp8DelayedScaling::plain_bf16>,
          .prepare = call<&Fp8DelayedScaling::describe_plain>,
          .needs = on_wgmma,
          .outputs = no_outputs,
          .kernels = nothing_spilled}}),
    .libraries = variants({{.name = "cublaslt_epilogue",
                            .run = call<&Fp8DelayedScaling::cublaslt_epilogue>,
                            .prepare = call<&Fp8DelayedScaling::tune_epilogue>,
                            .needs = by_cublaslt,
                            .changes_precision = true},
                           {.name = "cublaslt_epilogue_fast",
                            .run = call<&Fp8DelayedScaling::cublaslt_epilogue_fast>,
                            .prepare = call<&Fp8DelayedScaling::tune_epilogue_fast>,
                            .needs = by_cublaslt,
                            .changes_precision = true}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_codes,
    .needs = {.min_sm = 89},
    .sizes = sizes({{.name = "m", .full = 16384, .multiple = 16},
                    {.name = "n", .full = 8192, .multiple = 16, .scales = false},
                    {.name = "k", .full = 2048, .multiple = 16, .most = 16384, .scales = false},
                    {.name = "scale", .full = 0, .most = 2, .scales = false}}),
    // The saving does not depend on K, so that its share falls.
    .sweep = cases({{"k_512", "k=512"}, {"k_1024", "k=1024"}, {"k_2048", "k=2048"}, {"k_4096", "k=4096"}, {"k_8192", "k=8192"}}),
    .edges = cases({{"smallest", "m=16,n=16,k=16"},
                    {"tails", "m=144,n=208,k=272"},
                    {"several_tiles", "m=4000,n=5008,k=272"},
                    {"scale_too_small", "m=1008,n=2064,k=1040,scale=1"},
                    {"scale_too_large", "m=1008,n=2064,k=1040,scale=2"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch19
