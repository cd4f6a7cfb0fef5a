// SPDX-License-Identifier: Apache-2.0
// An FP8 layer: RMSNorm, rows quantized to e4m3, a product of 8192 x 14336 with K = 4096, bias, GELU, and e4m3 again. A library
// multiplies; what stands around it are six passes over memory, kernel by kernel. A generator is given the expressions before and
// after the product: the first becomes one kernel with a row in registers, the second goes into the GEMM's epilogue.
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/libraries/nvrtc.hpp>
#include <aisp/pair.hpp>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "fp8_glue.cuh"
#include "fp8_glue_code.hpp"
#include "fp8_products.hpp"
#include "gemm/gemm.hpp"
#include "row_cache.hpp"

namespace aisp::ch14 {
namespace {

using e4m3 = __nv_fp8_e4m3;
using shared::pack, shared::sum_of_squares, shared::unpack;
constexpr unsigned threads = 256;
constexpr float inverse_out_scale = 32;  // static quantization of the result: known before
constexpr int band = 16;                 // rows of clusters

using Operand = gemm::Operand<e4m3>;
// A struct, though an alias does with CUDA 13.0 (gemm/README.md).
struct PlainConfig : gemm::Config<Operand, Operand, gemm::Promoted, fp8_shape> {};

// The operators of a framework, each in a kernel of its own; a block has a row, or 256 packets of one.
__global__ __launch_bounds__(threads) void norm_kernel(const uint4* __restrict__ x, const uint4* __restrict__ gains,
                                                       uint4* __restrict__ normed, unsigned packets) {
  __shared__ float shared_sums[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[packet], gain[packet], squares = 0;
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    unpack(x[row + i], values);
    squares += sum_of_squares(values);
  }
  const float factor = inverse_rms(device::block_sum(squares, shared_sums), packets * packet);
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    unpack(x[row + i], values);
    unpack(gains[i], gain);
#pragma unroll
    for (int k = 0; k < packet; ++k) values[k] *= factor * gain[k];
    normed[row + i] = pack(values);
  }
}

__global__ __launch_bounds__(threads) void row_maximum_kernel(const uint4* __restrict__ normed, float* __restrict__ maxima,
                                                              unsigned packets) {
  __shared__ float shared_maxima[device::largest_block_in_warps];
  float values[packet], largest = 0;
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    unpack(normed[std::size_t{blockIdx.x} * packets + i], values);
    largest = fmaxf(largest, largest_magnitude(values));
  }
  largest = device::block_max(largest, 0.0f, shared_maxima);
  if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

__global__ __launch_bounds__(threads) void quantize_rows_kernel(const uint4* __restrict__ normed, float* maxima_then_scales,
                                                                uint2* __restrict__ quantized, unsigned packets) {
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  const float largest = maxima_then_scales[blockIdx.x];
  __syncthreads();  // all have read the maximum, which gives way to the scale
  float values[packet];
  for (unsigned i = threadIdx.x; i < packets; i += threads) {
    unpack(normed[row + i], values);
    quantized[row + i] = pack_e4m3(values, quantizing_factor(largest));
  }
  if (threadIdx.x == 0) maxima_then_scales[blockIdx.x] = row_scale(largest);
}

// In the order of `activations`. Which one it is, is the same for all threads.
__device__ __forceinline__ float activate(int which, float x) {
  switch (which) {
    case 0: return gemm::Gelu::of(x);
    case 1: return fmaxf(x, 0.0f);
    case 2: return __fdividef(x, 1 + __expf(-x));
    case 3: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return x;
  }
}

struct Scales {
  const float *rows, *columns;
};

// After the product, which the library leaves without its scales: they cost nothing in a pass that is made anyway. Blocks are
// rows by parts of them. `Out`: uint4, bf16 for another pass; or uint2, quantized at once.
template <class Out>
__global__ __launch_bounds__(threads) void activate_kernel(const uint4* __restrict__ product, Scales scales,
                                                           const uint4* __restrict__ bias, Out* __restrict__ out, int which,
                                                           unsigned packets) {
  const unsigned i = blockIdx.y * threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = std::size_t{blockIdx.x} * packets + i;
  const float of_row = scales.rows[blockIdx.x];
  const float4* const of_columns = reinterpret_cast<const float4*>(scales.columns) + 2 * i;
  const float4 low = of_columns[0], high = of_columns[1];
  const float by[packet] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float values[packet], biases[packet];
  unpack(product[at], values);
  unpack(bias[i], biases);
#pragma unroll
  for (int k = 0; k < packet; ++k) values[k] = activate(which, fmaf(values[k], of_row * by[k], biases[k]));
  if constexpr (sizeof(Out) == sizeof(uint4)) out[at] = pack(values);
  else out[at] = pack_e4m3(values, inverse_out_scale);
}

__global__ __launch_bounds__(threads) void quantize_kernel(const uint4* __restrict__ in, uint2* __restrict__ out,
                                                           unsigned packets) {
  const unsigned i = blockIdx.y * threads + threadIdx.x;
  if (i >= packets) return;
  const std::size_t at = std::size_t{blockIdx.x} * packets + i;
  float values[packet];
  unpack(in[at], values);
  out[at] = pack_e4m3(values, inverse_out_scale);
}

class Fp8QuantizeGemm final : public Workload {
 public:
  explicit Fp8QuantizeGemm(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        activation_{setup.size("activation")},
        // Channels of a model with outliers; a row of zeros, whose scale must not be 0.
        x_{setup.input<bf16>(m_ * k_, normal(0, 1).times(8, drawn(Axis{1, k_}, 4)).set(0, at(Axis{k_, m_}, 0)), {.name = "x"})},
        gains_{setup.input<bf16>(k_, normal(1, 0.1f), {.name = "gains"})},
        w_{setup.input<e4m3>(n_ * k_, normal(0, 90), {.name = "weights"})},
        w_scales_{setup.input<float>(n_, uniform(2e-4f, 5e-4f), {.name = "scales of the weights"})},
        bias_{setup.input<bf16>(n_, normal(0, 0.5f), {.name = "bias"})},
        y_{setup.output<e4m3>(m_ * n_, {.name = "y"})},
        normed_{setup.scratch<bf16>(m_ * k_, {.name = "normalized x"})},
        quantized_{setup.scratch<e4m3>(m_ * k_, {.name = "quantized x"})},
        row_scales_{setup.scratch<float>(m_, {.name = "scales of rows"})},
        product_{setup.scratch<bf16>(m_ * n_, {.name = "product"})},
        activated_{setup.scratch<bf16>(m_ * n_, {.name = "activated"})},
        cublaslt_{setup, {.m = m_, .n = n_, .k = k_, .operands = CUDA_R_8F_E4M3, .b_is_transposed = true}},
        nvrtc_{setup},
        team_{setup.threads(std::min(setup.cpus(), static_cast<int>(fp8_shapes.size())))},
        plain_{Plain::Problem{.a = quantized_, .b = w_, .c = product_, .m = m_, .n = n_, .k = k_}, {.band = band}} {
    // 0: all are tried, but for the first one where the clock must not choose.
    if (const std::size_t shape = setup.size("shape"); shape > 0) shapes_ = {shape - 1};
    else if (setup.reproducible()) shapes_ = {0};
    else
      for (std::size_t i = 0; i < fp8_shapes.size(); ++i) shapes_.push_back(i);
    const gemm::Problem<e4m3, e4m3, e4m3> problem{.a = quantized_, .b = w_, .c = y_, .m = m_, .n = n_, .k = k_};
    promoted_.describe(problem, band, std::make_index_sequence<fp8_shapes.size()>{});
    fast_.describe(problem, band, std::make_index_sequence<fp8_shapes.size()>{});
  }

  Cost cost() const override {
    return {
        .flops = 2.0 * static_cast<double>(m_) * static_cast<double>(n_) * static_cast<double>(k_),
        .math = Math::fp8,
        .bytes = static_cast<double>(x_.bytes() + gains_.bytes() + w_.bytes() + w_scales_.bytes() + bias_.bytes() + y_.bytes())};
  }
  void compute_reference(Launch&) override { rows_.forget(m_); }
  // On the operands as they are quantized: what is lost there is the same for all.
  double expected(std::size_t i) const override {
    const std::size_t column = i % n_;
    const Row& row = rows_.of(i / n_, [&] { return quantized_row(i / n_); });
    double sum = 0;
    for (std::size_t k = 0; k < k_; ++k) sum += static_cast<double>(row.values[k]) * w_.host(column * k_ + k);
    const double x = sum * row.scale * w_scales_.host(column) + bias_.host(column);
    return std::min(activations[activation_].reference(x) * double{inverse_out_scale}, double{largest_e4m3});
  }
  double expected_quantized(std::string_view, int, std::size_t i) const override { return expected(i); }
  void metrics(std::string_view variant, Metrics& metrics) override {
    double compile_ms = 0;
    if (variant != "separate_kernels" && variant != "cublaslt_alone") compile_ms += prologue_.compile_ms;
    const auto add = [&](const auto& product) {
      for (const auto& kernel : product.kernels) compile_ms += kernel.compile_ms;
      metrics.report("tile_m", fp8_shapes[*product.chosen].tile_m, "rows", Metrics::Better::higher);
      metrics.report("tile_n", fp8_shapes[*product.chosen].tile_n, "columns", Metrics::Better::higher);
    };
    if (variant == "generated") add(promoted_);
    if (variant == "generated_fast_accumulation") add(fast_);
    if (compile_ms > 0) metrics.report(compile_time, compile_ms, "ms", Metrics::Better::lower);
  }

  void separate_kernels(Launch& launch) {
    launch(norm_kernel, {rows(), threads}, packets(x_), packets(gains_), packets(normed_), k_ / packet);
    launch(row_maximum_kernel, {rows(), threads}, packets(normed_), row_scales_, k_ / packet);
    launch(quantize_rows_kernel, {rows(), threads}, packets(normed_), row_scales_, quantized_packets(quantized_), k_ / packet);
    glue_by_kernels(launch);
  }
  void generated_prologue(Launch& launch) {
    prologue(launch);
    glue_by_kernels(launch);
  }
  void hand_fused_glue(Launch& launch) {
    prologue(launch);
    multiply(launch);
    activate_and_quantize(launch);
  }
  void generated(Launch& launch) {
    prologue(launch);
    promoted_.run(launch, *promoted_.chosen, epilogue());
  }
  void generated_fast_accumulation(Launch& launch) {
    prologue(launch);
    fast_.run(launch, *fast_.chosen, epilogue());
  }
  void plain_epilogue(Launch& launch) {
    prologue(launch);
    plain_.run(launch.stream);
    activate_and_quantize(launch);
  }
  void multiply(Launch& launch) { cublaslt_.run(launch, quantized_, w_, product_); }

  void prologue(Launch& launch) {
    launch(prologue_.entry, {rows(), prologue_threads(k_)}, packets(x_), packets(gains_), quantized_packets(quantized_),
           row_scales_.get());
  }
  void compile_prologue(Launch&) { prologue_ = nvrtc_->kernel<Prologue>(prologue_source(k_, "x * inverse_rms * gain")); }
  void compile_promoted(Launch& launch) { compile(launch, promoted_, "Promoted"); }
  void compile_fast(Launch& launch) { compile(launch, fast_, "InTensorCores"); }

 private:
  using Plain = gemm::Gemm<PlainConfig>;
  using Prologue = void(const uint4*, const uint4*, uint2*, float*);
  struct Row {
    std::vector<float> values;
    double scale = 1;
  };

  // All shapes by all threads, and then the fastest of them on operands as they will be.
  template <class Mainloop>
  void compile(Launch& launch, Generated<Mainloop>& product, const char* mainloop) {
    compile_prologue(launch);
    if (product.chosen) return;
    std::array<CompiledCode, fp8_shapes.size()> made;
    std::atomic<std::size_t> next{0};
    team_.run([&](int) {
      for (std::size_t i = next++; i < shapes_.size(); i = next++)
        made[shapes_[i]] = nvrtc_->cubin(spliced_gemm_source(activations[activation_].text, mainloop, fp8_shapes[shapes_[i]]));
    });
    for (const std::size_t i : shapes_) product.kernels[i] = load<typename Generated<Mainloop>::Prepared::Kernel>(made[i]);
    if (shapes_.size() == 1) product.chosen = shapes_.front();
    else {
      prologue(launch);
      const auto best =
          fastest(launch.stream, shapes_.size(), [&](std::size_t i) { product.run(launch, shapes_[i], epilogue()); });
      if (!best) throw Unsupported{"none of the shapes runs on this GPU"};
      product.chosen = shapes_[*best];
    }
  }
  Spliced epilogue() const { return {row_scales_, w_scales_, bias_, inverse_out_scale}; }
  unsigned rows() const { return static_cast<unsigned>(m_); }
  Grid parts_of_rows() const {
    return {.blocks = {rows(), static_cast<unsigned>((n_ / packet + threads - 1) / threads)}, .threads = threads};
  }
  static const uint4* packets(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  static uint4* packets(const Scratch<bf16>& of) { return reinterpret_cast<uint4*>(of.get()); }
  static uint2* quantized_packets(e4m3* of) { return reinterpret_cast<uint2*>(of); }
  Scales scales() const { return {row_scales_, w_scales_}; }

  void glue_by_kernels(Launch& launch) {
    multiply(launch);
    launch(activate_kernel<uint4>, parts_of_rows(), packets(product_), scales(), packets(bias_), packets(activated_), activation_,
           n_ / packet);
    launch(quantize_kernel, parts_of_rows(), packets(activated_), quantized_packets(y_), n_ / packet);
  }
  void activate_and_quantize(Launch& launch) {
    launch(activate_kernel<uint2>, parts_of_rows(), packets(product_), scales(), packets(bias_), quantized_packets(y_),
           activation_, n_ / packet);
  }

  Row quantized_row(std::size_t row) const {
    std::vector<double> normed(k_);
    double squares = 0, largest = 0;
    for (std::size_t k = 0; k < k_; ++k) {
      normed[k] = x_.host(row * k_ + k);
      squares += normed[k] * normed[k];
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(k_) + double{norm_epsilon});
    for (std::size_t k = 0; k < k_; ++k) {
      normed[k] *= factor * gains_.host(k);
      largest = std::max(largest, std::abs(normed[k]));
    }
    Row result{.values = std::vector<float>(k_), .scale = largest > 0 ? largest / double{largest_e4m3} : 1};
    for (std::size_t k = 0; k < k_; ++k)
      result.values[k] = static_cast<float>(e4m3{static_cast<float>(normed[k] / result.scale)});
    return result;
  }

  std::size_t m_, n_, k_, activation_;
  Input<bf16> x_, gains_;
  Input<e4m3> w_;  // w[n][k]
  Input<float> w_scales_;
  Input<bf16> bias_;
  Output<e4m3> y_;
  Scratch<bf16> normed_;
  Scratch<e4m3> quantized_;
  Scratch<float> row_scales_;
  Scratch<bf16> product_, activated_;
  LibraryMatmul cublaslt_;
  Opened<Nvrtc> nvrtc_;
  ThreadTeam& team_;
  Plain plain_;
  std::vector<std::size_t> shapes_;  // that are tried
  Generated<gemm::Promoted> promoted_;
  Generated<gemm::InTensorCores> fast_;
  CompiledKernel<Prologue> prologue_;
  shared::RowCache<Row> rows_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair fp8_quantize_gemm{
    .teaches = "a third of an FP8 layer's time is glue: generated, it is one kernel before the product and the epilogue after it",
    .lesson = "generated",
    .make = make<Fp8QuantizeGemm>,
    .baseline = {.name = "separate_kernels", .run = call<&Fp8QuantizeGemm::separate_kernels>},
    .optimized = variants({{.name = "generated_prologue",
                            .run = call<&Fp8QuantizeGemm::generated_prologue>,
                            .prepare = call<&Fp8QuantizeGemm::compile_prologue>},
                           {.name = "hand_fused_glue",
                            .run = call<&Fp8QuantizeGemm::hand_fused_glue>,
                            .prepare = call<&Fp8QuantizeGemm::compile_prologue>},
                           {.name = "generated",
                            .run = call<&Fp8QuantizeGemm::generated>,
                            .prepare = call<&Fp8QuantizeGemm::compile_promoted>,
                            .needs = {.dsmem = true},
                            .kernels = nothing_spilled},
                           {.name = "generated_fast_accumulation",
                            .run = call<&Fp8QuantizeGemm::generated_fast_accumulation>,
                            .prepare = call<&Fp8QuantizeGemm::compile_fast>,
                            .needs = {.dsmem = true},
                            .changes_precision = true,
                            .kernels = nothing_spilled}}),
    .controls = variants({// Our product in place of the library's: a faster or slower main loop is no gain of fusion.
                          {.name = "plain_epilogue",
                           .run = call<&Fp8QuantizeGemm::plain_epilogue>,
                           .prepare = call<&Fp8QuantizeGemm::compile_prologue>,
                           .needs = {.dsmem = true}},
                          // The library's product and nothing else: of rows that were quantized before.
                          {.name = "cublaslt_alone",
                           .run = call<&Fp8QuantizeGemm::multiply>,
                           .prepare = call<&Fp8QuantizeGemm::compile_prologue>,
                           .reset = call<&Fp8QuantizeGemm::prologue>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // E4M3 has three bits of mantissa: a step is 1/8 of the power of two below a value, and a rounding error lies evenly within
    // half a step, 1/16 / sqrt(3) = 0.036 of that power. Over mantissas spread evenly from 1 to 2 that is 0.0245 of the norm,
    // over this pair's GELU 0.026. The baseline also rounds x to bf16 before it makes codes: halfway between two codes, 1 in 42
    // becomes its neighbour, which is 0.013 of a sum, and 0.030 of the norm together with the rounding of y. Scales of rows and
    // channels are the reference's too. Three of 4096 terms that are missing would make 0.038 in `generated` and pass; at the
    // edges with K of 16 to 272 one makes 0.054 or more, and fails.
    .tolerance = within(0.04),
    .needs = {.min_sm = 90, .max_sm = 90, .libraries = {Library::cublaslt, Library::nvrtc}},
    .overrides = {.setup_seconds = 90},  // four kernels, where one CPU compiles them
    // activation: GELU, or one of four others in the order of `activations`. shape: 0, or the only one of fp8_shapes that is
    // tried.
    .sizes = sizes({{.name = "m", .full = 8192, .multiple = 16},
                    {.name = "n", .full = 14336, .multiple = 16},
                    {.name = "k", .full = 4096, .multiple = 16, .most = 16384},
                    {.name = "activation", .full = 0, .most = activations.size() - 1, .scales = false},
                    {.name = "shape", .full = 0, .most = fp8_shapes.size(), .scales = false}}),
    .sweep = cases({{"one_tile_for_both", "shape=1"}, {"pingpong", "shape=2"}}),
    // Each shape with several tiles a block, and tails.
    .edges = cases({{"smallest", "m=16,n=16,k=16"},
                    {"tails", "m=144,n=208,k=144"},
                    {"relu", "m=4000,n=5008,k=272,activation=1,shape=1"},
                    {"silu", "m=4000,n=5008,k=272,activation=2,shape=2"},
                    {"squared_relu", "m=4000,n=5008,k=272,activation=3,shape=1"},
                    {"bias_alone", "m=4000,n=5008,k=272,activation=4,shape=2"},
                    {"pingpong", "m=4000,n=5008,k=272,shape=2"},
                    {"several_packets_a_thread", "m=32,n=64,k=16384"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch14
