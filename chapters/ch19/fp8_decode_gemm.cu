// SPDX-License-Identifier: Apache-2.0
// Gate and up projection of 32 tokens, weights of 57344 x 8192: 30 GFLOP that nobody notices, and 0.94 GB of bf16 that everybody
// waits for. In e4m3, with a scale for each channel and one for each token, it is half. Tokens as rows fill half of the 64 that
// wgmma multiplies at least; with weights as rows and tokens as 32 columns nothing is padded. What is left is that all
// multiprocessors load until the end, and begin before the tokens have been quantized.
#include <cuda_fp8.h>
#include <aisp/device/fence.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "gemm/gemm.hpp"
#include "quantized_rows.cuh"
#include "row_cache.hpp"

namespace aisp::ch19 {
namespace {

using shared::bf16, shared::packet;
using e4m3 = __nv_fp8_e4m3;
constexpr unsigned threads = 512, most_packets = 4;  // of a row that a thread has: K is up to 16384
constexpr std::size_t channel_groups = 64;

__host__ __device__ inline float row_scale(float largest) { return largest > 0 ? largest / largest_e4m3 : 1; }
__host__ __device__ inline float quantizing_factor(float largest) { return largest > 0 ? largest_e4m3 / largest : 1; }

// A block has a row. `announces`: the product may begin with the weights meanwhile.
template <bool announces>
__global__ __launch_bounds__(threads) void quantize_rows_kernel(const uint4* __restrict__ x, uint2* __restrict__ codes,
                                                                float* __restrict__ scales, unsigned packets) {
  if constexpr (announces) device::let_dependents_start();
  __shared__ float maxima[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[most_packets][packet] = {}, largest = 0;
#pragma unroll
  for (unsigned p = 0; p < most_packets; ++p) {
    if (const unsigned i = p * threads + threadIdx.x; i < packets) shared::unpack(x[row + i], values[p]);
    largest = fmaxf(largest, largest_magnitude(values[p]));
  }
  largest = device::block_max(largest, 0.0f, maxima);
#pragma unroll
  for (unsigned p = 0; p < most_packets; ++p)
    if (const unsigned i = p * threads + threadIdx.x; i < packets)
      codes[row + i] = pack_e4m3(values[p], quantizing_factor(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = row_scale(largest);
}

// Rows of codes as panels of 128 of K, with zeros after the last.
constexpr unsigned panel = 128, panel_packets = panel / packet;
__global__ __launch_bounds__(threads) void lay_panels_kernel(const uint2* __restrict__ codes, uint2* __restrict__ panels,
                                                             unsigned packets, unsigned padded_packets) {
  for (unsigned i = threadIdx.x; i < padded_packets; i += threads)
    panels[(std::size_t{i / panel_packets} * gridDim.x + blockIdx.x) * panel_packets + i % panel_packets] =
        i < packets ? codes[std::size_t{blockIdx.x} * packets + i] : make_uint2(0, 0);
}

// As many stages as fit.
constexpr int stages_of(int tile_m, int tile_n) { return 224 * 1024 / ((tile_m + tile_n) * 128); }

struct TokensOnM : gemm::Config<gemm::Operand<e4m3>, gemm::Operand<e4m3>, gemm::Promoted,
                                gemm::Shape{.tile_m = 64, .tile_n = 256, .stages = 5, .consumers = 1}> {};
// 256 rows of weights at a time, so that tokens are read from L2 seldom.
constexpr int tile_rows(int tile_n) { return tile_n <= 128 ? 256 : 128; }
template <class Weights, class Mainloop, int tile_n, bool early = false>
struct Swapped
    : gemm::Config<Weights, gemm::Operand<typename Weights::Element>, Mainloop,
                   gemm::Shape{.tile_m = tile_rows(tile_n), .tile_n = tile_n, .stages = stages_of(tile_rows(tile_n), tile_n)}> {
  static constexpr bool begins_early = early;
};
template <int tile_n, bool early = false>
using Fp8 = Swapped<gemm::Operand<e4m3>, gemm::Promoted, tile_n, early>;
template <int tile_n>
using Fp8InPanels = Swapped<gemm::Panels<e4m3>, gemm::Promoted, tile_n, true>;
using Columns = gemm::ColumnsStore<bf16>;
using Scales = gemm::RowColumnScaled;

// A product, described once.
using Product = std::function<void(cudaStream_t)>;
// All with weights as rows and tiles of the same width.
struct Products {
  Product swapped, ranges, early, panels, in_bf16;
};

class Fp8DecodeGemm final : public Workload {
 public:
  explicit Fp8DecodeGemm(Setup& setup)
      : tokens_{setup.size("tokens")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        x_{setup.input<bf16>(tokens_ * k_, of_tokens(), {.name = "x"})},
        w_{setup.input<bf16>(n_ * k_, of_weights(), {.name = "weights", .constant = true})},
        y_{setup.output<bf16>(tokens_ * n_, {.name = "y", .groups = groups()})},
        quantized_x_{setup.scratch<e4m3>(tokens_ * k_, {.name = "quantized x"})},
        quantized_w_{setup.scratch<e4m3>(n_ * k_, {.name = "quantized weights"})},
        panels_{setup.scratch<e4m3>(n_ * padded_k(), {.name = "panels of weights"})},
        token_scales_{setup.scratch<float>(tokens_, {.name = "scales of tokens"})},
        channel_scales_{setup.scratch<float>(n_, {.name = "scales of channels"})},
        // Two for each multiprocessor.
        parts_{setup.scratch<float>(std::size_t{2} * multiprocessors() * tile_rows(32) * tile_n(), {.name = "parts of sums"})},
        cublaslt_bf16_{setup, {.m = tokens_, .n = n_, .k = k_, .b_is_transposed = true}},
        cublaslt_{setup, scaled_problem(false)},
        cublaslt_fast_{setup, scaled_problem(true)},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override { return cost_of(Math::bf16, static_cast<double>(w_.bytes())); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "cublas_bf16" || variant == "bf16_swap_ab") return cost();
    return cost_of(Math::fp8, static_cast<double>(quantized_w_.bytes() + channel_scales_.bytes()));
  }
  void compute_reference(Launch&) override {
    of_tokens_.forget(tokens_);
    of_channels_.forget(n_);
  }
  double expected(std::size_t i) const override {
    const std::size_t token = i / n_, channel = i % n_;
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += x_.host(token * k_ + k) * w_.host(channel * k_ + k);
    return sum;
  }
  double expected_quantized(std::string_view, int, std::size_t i) const override {
    const std::size_t token = i / n_, channel = i % n_;
    const Row& x = of_tokens_.of(token, [&] { return quantized_row(x_, token); });
    const Row& w = of_channels_.of(channel, [&] { return quantized_row(w_, channel); });
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += static_cast<double>(x.values[k]) * static_cast<double>(w.values[k]);
    return sum * double{x.scale} * double{w.scale};
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens/s");
  }

  void tune_bf16(Launch& launch) {
    if (!reproducible_) cublaslt_bf16_.tune(launch, x_, w_, y_);
  }
  void cublas_bf16(Launch& launch) { cublaslt_bf16_.run_tuned(launch, x_, w_, y_); }

  void quantize_weights(Launch& launch) {
    launch(quantize_rows_kernel<false>, {static_cast<unsigned>(n_), threads}, reinterpret_cast<const uint4*>(w_.get()),
           reinterpret_cast<uint2*>(quantized_w_.get()), channel_scales_, k_ / packet);
  }
  void describe_tokens_on_m(Launch& launch) {
    quantize_weights(launch);
    if (!tokens_on_m_)
      tokens_on_m_.emplace(OnM::Problem{.a = quantized_x_, .b = quantized_w_, .c = y_, .m = tokens_, .n = n_, .k = k_});
  }
  void tokens_on_m(Launch& launch) {
    quantize_tokens<false>(launch);
    tokens_on_m_->run(launch.stream, {token_scales_, channel_scales_});
  }

  void describe(Launch& launch) {
    quantize_weights(launch);
    if (products_.swapped) return;
    switch (tile_n()) {
      case 32: products_ = described<32>(); break;
      case 64: products_ = described<64>(); break;
      case 128: products_ = described<128>(); break;
      default: products_ = described<256>();
    }
  }
  template <Product Products::*product>
  void swapped(Launch& launch) {
    quantize_tokens<false>(launch);
    (products_.*product)(launch.stream);
  }
  template <Product Products::*product>
  void overlapped(Launch& launch) {
    quantize_tokens<true>(launch);
    (products_.*product)(launch.stream);
  }
  void describe_panels(Launch& launch) {
    describe(launch);
    launch(lay_panels_kernel, {static_cast<unsigned>(n_), threads}, reinterpret_cast<const uint2*>(quantized_w_.get()),
           reinterpret_cast<uint2*>(panels_.get()), k_ / packet, padded_k() / packet);
  }
  void bf16_swap_ab(Launch& launch) { products_.in_bf16(launch.stream); }

  void tune_cublaslt(Launch& launch) {
    quantize_weights(launch);
    quantize_tokens<false>(launch);
    cublaslt_.tune(launch, quantized_x_, quantized_w_, y_);
  }
  void cublaslt(Launch& launch) {
    quantize_tokens<false>(launch);
    cublaslt_.run_tuned(launch, quantized_x_, quantized_w_, y_);
  }
  void tune_cublaslt_fast(Launch& launch) {
    quantize_weights(launch);
    quantize_tokens<false>(launch);
    cublaslt_fast_.tune(launch, quantized_x_, quantized_w_, y_);
  }
  void cublaslt_fast(Launch& launch) {
    quantize_tokens<false>(launch);
    cublaslt_fast_.run_tuned(launch, quantized_x_, quantized_w_, y_);
  }

 private:
  using OnM = gemm::Gemm<TokensOnM, gemm::Bands, Scales>;
  struct Row {
    std::vector<float> values;
    float scale = 1;
  };

  std::size_t padded_k() const { return (k_ + panel - 1) / panel * panel; }
  // Limits hold for small channels by themselves, where a group has enough of them.
  Axis groups() const { return n_ < 4096 ? Axis{} : Axis{n_ / channel_groups, channel_groups}; }
  int tile_n() const { return tokens_ <= 32 ? 32 : tokens_ <= 64 ? 64 : tokens_ <= 128 ? 128 : 256; }
  // Outlier channels, zeros of both signs and a token that is nothing else, where there are others.
  Pattern of_tokens() const {
    const Pattern pattern = normal(0, 1).times(20, 100, drawn(Axis{1, k_}, 8)).set(-0.0f, drawn(Axis{1, tokens_ * k_}, tokens_));
    return tokens_ < 8 ? pattern : pattern.set(0, at(Axis{k_, tokens_}, 5));
  }
  // A group of channels with scales of 2^-20 of the others'; some of zeros.
  Pattern of_weights() const {
    const Pattern pattern = normal(0, 0.02f).times(0x1p-20f, at(Axis{n_ / channel_groups * k_, channel_groups}, 3));
    return n_ < 4096 ? pattern : pattern.set(0, drawn(Axis{k_, n_}, 4));
  }
  MatmulProblem scaled_problem(bool fast) const {
    return {.m = tokens_,
            .n = n_,
            .k = k_,
            .operands = CUDA_R_8F_E4M3,
            .b_is_transposed = true,
            .fast_accumulation = fast,
            .row_scales = token_scales_,
            .column_scales = channel_scales_};
  }
  Cost cost_of(Math math, double weight_bytes) const {
    return {.flops = 2 * static_cast<double>(tokens_) * static_cast<double>(n_) * static_cast<double>(k_),
            .math = math,
            .bytes = static_cast<double>(x_.bytes() + y_.bytes()) + weight_bytes};
  }
  Row quantized_row(const Input<bf16>& of, std::size_t row) const {
    Row result{.values = std::vector<float>(k_)};
    float largest = 0;
    for (std::size_t k = 0; k < k_; ++k) {
      result.values[k] = static_cast<float>(of.host(row * k_ + k));
      largest = std::max(largest, std::abs(result.values[k]));
    }
    const float factor = quantizing_factor(largest);
    for (float& value : result.values) value = static_cast<float>(e4m3{value * factor});
    result.scale = row_scale(largest);
    return result;
  }

  template <bool announces>
  void quantize_tokens(Launch& launch) {
    launch(quantize_rows_kernel<announces>, {static_cast<unsigned>(tokens_), threads}, reinterpret_cast<const uint4*>(x_.get()),
           reinterpret_cast<uint2*>(quantized_x_.get()), token_scales_, k_ / packet);
  }
  template <class Element, class Out>
  gemm::Problem<Element, Element, Out> problem(const Element* w, const Element* x, Out* to) const {
    return {.a = w, .b = x, .c = to, .m = n_, .n = tokens_, .k = k_};
  }
  Scales scales() const { return {channel_scales_, token_scales_}; }
  template <class Config>
  Product swapped_product() const {
    return [product = gemm::Gemm<Config, gemm::Bands, Scales, Columns>{problem<e4m3, bf16>(quantized_w_, quantized_x_, y_)},
            scales = scales()](cudaStream_t stream) { product.run(stream, scales); };
  }
  template <class Config>
  Product product_in_ranges() const {
    const e4m3* const weights = gemm::in_panels<typename Config::A> ? panels_.get() : quantized_w_.get();
    return [product = gemm::GemmInRanges<Config, Scales, Columns>{problem<e4m3, bf16>(weights, quantized_x_, y_), parts_},
            scales = scales()](cudaStream_t stream) { product.run(stream, scales); };
  }
  template <int tile_n>
  Products described() const {
    using InBf16 = gemm::GemmInRanges<Swapped<gemm::Operand<bf16>, gemm::InTensorCores, tile_n>, gemm::Identity, Columns>;
    return {.swapped = swapped_product<Fp8<tile_n>>(),
            .ranges = product_in_ranges<Fp8<tile_n>>(),
            .early = product_in_ranges<Fp8<tile_n, true>>(),
            .panels = product_in_ranges<Fp8InPanels<tile_n>>(),
            .in_bf16 = [product = InBf16{problem<bf16, bf16>(w_, x_, y_), parts_}](cudaStream_t stream) { product.run(stream); }};
  }

  std::size_t tokens_, n_, k_;
  Input<bf16> x_, w_;  // x[token][k], w[channel][k]
  Output<bf16> y_;     // [token][channel]
  Scratch<e4m3> quantized_x_, quantized_w_, panels_;
  Scratch<float> token_scales_, channel_scales_, parts_;
  LibraryMatmul cublaslt_bf16_, cublaslt_, cublaslt_fast_;
  bool reproducible_;
  std::optional<OnM> tokens_on_m_;
  Products products_;
  shared::RowCache<Row> of_tokens_, of_channels_;
};

constexpr Needs by_cublaslt{.libraries = {Library::cublaslt}}, fp8_by_cublaslt{.min_sm = 89, .libraries = {Library::cublaslt}};
constexpr Needs on_wgmma{.min_sm = 90, .max_sm = 90};
constexpr KernelLimits nothing_spilled{.local_bytes = 0};

// Rounding to bf16 is 1.6e-3, and 4e-3 of a value at most, of which a group of few samples may consist. The tensor cores keep 14
// bits of a sum, those of its largest product: beside outliers of 100 that is 1e-3 where each 128 of K go to fp32, and grows with
// K where they do not.
constexpr Tolerance rounded = within(4e-3), promoted_sums = within(5e-3), fast_sums = within(1e-2);

template <Method run, Method prepare = call<&Fp8DecodeGemm::describe>>
constexpr Variant ours(std::string_view name) {
  return {.name = name,
          .run = run,
          .prepare = prepare,
          .needs = on_wgmma,
          .changes_precision = true,
          .tolerance = promoted_sums,
          .kernels = nothing_spilled};
}
template <Product Products::*product>
constexpr Method swapped = call<&Fp8DecodeGemm::swapped<product>>;
template <Product Products::*product>
constexpr Method overlapped = call<&Fp8DecodeGemm::overlapped<product>>;

}  // namespace

extern constinit const Pair fp8_decode_gemm{
    .teaches = "a few tokens' product takes as long as its weights take to arrive: half the bytes, and nothing else, is the gain",
    .lesson = "tokens_on_m",
    .make = make<Fp8DecodeGemm>,
    .baseline = {.name = "cublas_bf16",
                 .run = call<&Fp8DecodeGemm::cublas_bf16>,
                 .prepare = call<&Fp8DecodeGemm::tune_bf16>,
                 .needs = by_cublaslt},
    .optimized = variants({ours<call<&Fp8DecodeGemm::tokens_on_m>, call<&Fp8DecodeGemm::describe_tokens_on_m>>("tokens_on_m"),
                           ours<swapped<&Products::swapped>>("wgmma_swap_ab"), ours<swapped<&Products::ranges>>("split_k"),
                           ours<overlapped<&Products::early>>("quantize_pdl")}),
    // The same products of weights in bf16: what is ours, and what is bytes. And of codes that lie as stages load them, each in
    // one piece: what the strides of their rows cost.
    .controls = variants({{.name = "bf16_swap_ab",
                           .run = call<&Fp8DecodeGemm::bf16_swap_ab>,
                           .prepare = call<&Fp8DecodeGemm::describe>,
                           .needs = on_wgmma,
                           .kernels = nothing_spilled},
                          ours<overlapped<&Products::panels>, call<&Fp8DecodeGemm::describe_panels>>("weights_in_panels")}),
    .libraries = variants({{.name = "cublaslt",
                            .run = call<&Fp8DecodeGemm::cublaslt>,
                            .prepare = call<&Fp8DecodeGemm::tune_cublaslt>,
                            .needs = fp8_by_cublaslt,
                            .changes_precision = true,
                            .tolerance = promoted_sums},
                           {.name = "cublaslt_fast",
                            .run = call<&Fp8DecodeGemm::cublaslt_fast>,
                            .prepare = call<&Fp8DecodeGemm::tune_cublaslt_fast>,
                            .needs = fp8_by_cublaslt,
                            .changes_precision = true,
                            .tolerance = fast_sums}}),
    .bound = Bound::memory,
    .tolerance = rounded,
    .needs = {.min_sm = 80},
    .sizes = sizes({{.name = "tokens", .full = 32, .most = 256, .scales = false},
                    {.name = "n", .full = 57344, .multiple = channel_groups, .most = 1u << 18},
                    {.name = "k", .full = 8192, .multiple = 16, .most = packet * threads * most_packets, .scales = false}}),
    .sweep = cases({{"tokens_1", "tokens=1"},
                    {"tokens_8", "tokens=8"},
                    {"tokens_16", "tokens=16"},
                    {"tokens_32", "tokens=32"},
                    {"tokens_64", "tokens=64"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_256", "tokens=256"},
                    {"attention_output", "n=8192"}}),
    .edges = cases({{"smallest", "tokens=1,n=64,k=16"},
                    {"one_token", "tokens=1,n=4160,k=1040"},
                    {"eight_tokens", "tokens=8,n=4160,k=1040"},
                    {"one_less", "tokens=31,n=4160,k=2064"},
                    {"fifty", "tokens=50,n=4160,k=1040"},
                    {"hundred", "tokens=100,n=4160,k=1040"},
                    {"more_than_a_tile", "tokens=250,n=4160,k=1040"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch19
