// SPDX-License-Identifier: Apache-2.0
// A 70B model's gated MLP for one token is a read of its weights: in INT4 with a scale and a zero point for every 128 of them a
// quarter of the bytes. How near the time comes to a quarter is decided by the instructions that unpack and multiply a weight,
// for about five of which its half byte leaves room on an H100. A shift, a mask and a conversion for each cost time. Nibbles in
// the order in which one mask makes two bf16 numbers of them need fewer, and as fragments of mma.sync they need no FMA either.
#include <cuda_bf16.h>
#include <aisp/device/reduce.cuh>
#include <aisp/dispatch.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <array>
#include <vector>

#include "int4_products.cuh"

namespace aisp::ch16 {
namespace {

using namespace int4;

// How a word becomes eight numbers that are `offset` too large.
struct OneByOne {
  static constexpr float offset = 0;
  static __device__ __forceinline__ void expand(unsigned word, float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = static_cast<float>(word >> 4 * i & 15u);
  }
};
struct InPairs {
  static constexpr float offset = 128;
  static __device__ __forceinline__ void expand(unsigned word, float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned pair = (word >> 4 * i & nibbles) | bf16_128;
      w[2 * i] = low(pair), w[2 * i + 1] = high(pair);
    }
  }
};

// Rows of codes along K; a warp has some rows at once, for which x is widened once. With a gate the second half of them are those
// of `up`.
template <class Expansion, int tokens, bool gated>
__global__ __launch_bounds__(threads) void rows_kernel(Product p) {
  const unsigned lane = threadIdx.x % 32, packets = p.k / 32;
  constexpr unsigned outputs = gated ? rows_at_once / 2 : rows_at_once;
  const unsigned first = (blockIdx.x * warps + threadIdx.x / 32) * outputs;
  float results[rows_at_once][tokens] = {};
  const uint4* words[rows_at_once];
  const Quantizer* quantizers[rows_at_once];
#pragma unroll
  for (unsigned r = 0; r < rows_at_once; ++r) {
    const std::size_t row = first + r % outputs + r / outputs * p.rows;
    words[r] = static_cast<const uint4*>(p.weights) + row * packets + lane;
    quantizers[r] = p.quantizers + row * (p.k / group) + lane / 4;
  }
  uint4 next[rows_at_once];
  unsigned next_quantizer[rows_at_once];
  const auto request = [&](unsigned at) {
#pragma unroll
    for (unsigned r = 0; r < rows_at_once; ++r) next[r] = words[r][at], next_quantizer[r] = quantizers[r][at / 4];
  };
  request(0);
#pragma unroll 2
  for (unsigned at = 0; at < packets; at += 32) {
    uint4 packet[rows_at_once];
    unsigned quantizer[rows_at_once];
#pragma unroll
    for (unsigned r = 0; r < rows_at_once; ++r) packet[r] = next[r], quantizer[r] = next_quantizer[r];
    request(min(at + 32, packets - 32));
    __syncwarp();  // keeps the compiler from moving these loads to where they are used
    const bf16* const x_of_lane = p.x + (at + lane) * 32;
    float dots[rows_at_once][tokens] = {}, x_sums[tokens] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float w[rows_at_once][8];
#pragma unroll
      for (unsigned r = 0; r < rows_at_once; ++r)
        Expansion::expand(i == 0 ? packet[r].x : i == 1 ? packet[r].y : i == 2 ? packet[r].z : packet[r].w, w[r]);
#pragma unroll
      for (int token = 0; token < tokens; ++token) {
        float x[8];
        widen(reinterpret_cast<const uint4*>(x_of_lane + std::size_t(token) * p.k)[i], x);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          x_sums[token] += x[k];
#pragma unroll
          for (unsigned r = 0; r < rows_at_once; ++r) dots[r][token] = fmaf(w[r][k], x[k], dots[r][token]);
        }
      }
    }
#pragma unroll
    for (unsigned r = 0; r < rows_at_once; ++r)
#pragma unroll
      for (int token = 0; token < tokens; ++token)
        results[r][token] =
            fmaf(scale_of(quantizer[r]), fmaf(-Expansion::offset - zero_point(quantizer[r]), x_sums[token], dots[r][token]),
                 results[r][token]);
  }
#pragma unroll
  for (int token = 0; token < tokens; ++token) {
#pragma unroll
    for (unsigned r = 0; r < rows_at_once; ++r) results[r][token] = device::warp_sum(results[r][token]);
#pragma unroll
    for (unsigned r = 0; r < outputs; ++r)
      if (lane == 0) store<gated>(p, first + r, token, tokens, results[r][token], results[gated ? outputs + r : r][token]);
  }
}

class WeightOnlyInt4 final : public Workload {
 public:
  explicit WeightOnlyInt4(Setup& setup)
      : hidden_{setup.size("hidden")},
        ffn_{setup.size("ffn")},
        tokens_{setup.size("tokens")},
        // Normal weights, rounded to 16 codes.
        codes_{setup.input<std::uint8_t>(weights(), normal_codes(), {.name = "codes", .constant = true})},
        quantizers_{setup.input<Quantizer>(weights() / group, quantizers(setup.size("planted") == 1),
                                           {.name = "scales and zero points", .constant = true})},
        x_{setup.input<bf16>(tokens_ * hidden_, normal(0, 1).times(100, drawn(Axis{1, hidden_}, 8)), {.name = "x"})},
        y_{setup.output<float>(hidden_ * tokens_, {.name = "y"})},
        activations_{setup.scratch<bf16>(tokens_ * ffn_, {.name = "activations"})},
        gates_and_ups_{setup.scratch<float>(2 * ffn_ * tokens_, {.name = "gates and ups"})},
        wide_{setup.scratch<bf16>(weights(), {.name = "weights as bf16"})},
        words_{setup.scratch<unsigned>(weights() / 8, {.name = "words of the checkpoint"}),
               setup.scratch<unsigned>(weights() / 8, {.name = "words along K"}),
               setup.scratch<unsigned>(weights() / 8, {.name = "interleaved words"}),
               setup.scratch<unsigned>(weights() / 8, {.name = "fragments"})},
        packed_{setup.scratch<Quantizer>(weights() / group, {.name = "quantizers of the checkpoint"}),
                setup.scratch<Quantizer>(weights() / group, {.name = "quantizers along K"}),
                setup.scratch<Quantizer>(weights() / group, {.name = "quantizers of interleaved words"}),
                setup.scratch<Quantizer>(weights() / group, {.name = "quantizers of fragments"})},
        exact_{setup.scratch<double>(tokens_ * (3 * ffn_ + hidden_), {.name = "products in float64"})},
        up_{setup, {.m = 2 * ffn_, .n = tokens_, .k = hidden_, .result = CUDA_R_32F, .b_is_transposed = true}},
        down_{setup, {.m = hidden_, .n = tokens_, .k = ffn_, .result = CUDA_R_32F, .b_is_transposed = true}},
        reproducible_{setup.reproducible()} {}

  Cost cost() const override { return cost_of(0.5 + static_cast<double>(sizeof(Quantizer)) / group); }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "cublas_bf16" || variant == "bf16_gemv" ? cost_of(sizeof(bf16)) : cost();
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(tokens_), "tokens of a layer/s");
  }
  void compute_reference(Launch& launch) override {
    double *const first = exact_, *const hidden = first + 2 * ffn_ * tokens_, *const last = hidden + ffn_ * tokens_;
    launch(product_kernel<bf16>, {blocks(2 * ffn_, 1), pack_threads}, codes(false), x_.get(), tokens_, first);
    launch(gate_reference_kernel, {blocks(ffn_ * tokens_, pack_threads), pack_threads}, first, hidden, ffn_, tokens_);
    launch(product_kernel<double>, {blocks(hidden_, 1), pack_threads}, codes(true), hidden, tokens_, last);
    reference_.resize(hidden_ * tokens_);
    check(cudaMemcpyAsync(reference_.data(), last, reference_.size() * sizeof(double), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
  }
  double expected(std::size_t i) const override { return reference_[i % tokens_ * hidden_ + i / tokens_]; }

  void expand(Launch& launch) {
    for (const bool down : {false, true}) {
      const Codes of = codes(down);
      const std::size_t count = std::size_t{of.rows} * of.k;
      launch(expand_kernel, {blocks(count, pack_threads), pack_threads}, of, wide_.get() + (down ? first_weights() : 0));
    }
  }
  void expand_and_tune(Launch& launch) {
    expand(launch);
    if (reproducible_) return;
    up_.tune(launch, wide_, x_, gates_and_ups_);
    down_.tune(launch, wide_.get() + first_weights(), activations_, y_);
  }
  void cublas_bf16(Launch& launch) {
    up_.run_tuned(launch, wide_, x_, gates_and_ups_);
    launch(gate_kernel, {blocks(ffn_ * tokens_, threads), threads}, gates_and_ups_.get(), activations_.get(), ffn_, tokens_);
    down_.run_tuned(launch, wide_.get() + first_weights(), activations_, y_);
  }
  template <Layout layout>
  void pack(Launch& launch) {
    constexpr auto place = static_cast<std::size_t>(layout);
    for (const bool down : {false, true}) {
      const Codes of = codes(down);
      launch(pack_kernel<layout>, {blocks(std::size_t{of.rows} * of.k / 8, pack_threads), pack_threads}, of,
             words_[place].get() + (down ? first_weights() / 8 : 0), packed_[place].get() + (down ? first_weights() / group : 0));
    }
  }
  void gptq_layout(Launch& launch) {
    with_tokens([&]<int tokens>() {
      launch(gptq_kernel<OneByOne, tokens, true>, {blocks(ffn_, columns), threads}, product<Layout::gptq>(false));
      launch(gptq_kernel<OneByOne, tokens, false>, {blocks(hidden_, columns), threads}, product<Layout::gptq>(true));
    });
  }
  template <Layout layout, class Expansion>
  void rows(Launch& launch) {
    with_tokens([&]<int tokens>() {
      launch(rows_kernel<Expansion, tokens, true>, {blocks(2 * ffn_, rows_of_block), threads}, product<layout>(false));
      launch(rows_kernel<Expansion, tokens, false>, {blocks(hidden_, rows_of_block), threads}, product<layout>(true));
    });
  }
  void awq_mma(Launch& launch) {
    with_tokens([&]<int tokens>() {
      launch(fragments_kernel<tokens, true>, {blocks(ffn_, tile_rows), threads}, product<Layout::fragments>(false));
      launch(fragments_kernel<tokens, false>, {blocks(hidden_, tile_rows), threads}, product<Layout::fragments>(true));
    });
  }
  void words_alone(Launch& launch) {
    launch(words_kernel<true>, {blocks(2 * ffn_, rows_of_block), threads}, product<Layout::interleaved>(false));
    launch(words_kernel<false>, {blocks(hidden_, rows_of_block), threads}, product<Layout::interleaved>(true));
  }
  void bf16_gemv(Launch& launch) {
    Product up = product<Layout::rows>(false), down = product<Layout::rows>(true);
    up.weights = wide_.get(), down.weights = wide_.get() + first_weights();
    with_tokens([&]<int tokens>() {
      launch(bf16_kernel<tokens, true>, {blocks(ffn_, warps), threads}, up);
      launch(bf16_kernel<tokens, false>, {blocks(hidden_, warps), threads}, down);
    });
  }

 private:
  static constexpr unsigned rows_of_block = warps * rows_at_once;
  static_assert(step % group == 0);

  static Pattern normal_codes() {
    return categorical({{0, 3},
                        {1, 7},
                        {2, 14},
                        {3, 27},
                        {4, 46},
                        {5, 67},
                        {6, 87},
                        {7, 98},
                        {8, 98},
                        {9, 87},
                        {10, 67},
                        {11, 46},
                        {12, 27},
                        {13, 14},
                        {14, 7},
                        {15, 3}});
  }
  // Scales that give weights of about 1 / sqrt(8192). Planted are zero points at both ends, scales that are 2^-12 to 2^4, and one
  // that is zero.
  static HostFill<Quantizer> quantizers(bool planted) {
    return [planted](std::span<Quantizer> values, std::uint64_t seed) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t bits = random_bits(seed, i);
        unsigned exponent = 127 - 9 + static_cast<unsigned>(bits % 2), zero = 7 + static_cast<unsigned>(bits >> 8) % 2;
        if (planted) zero = bits >> 16 & 15;
        if (planted && i % 64 == 3) exponent = 127 - 12 + static_cast<unsigned>(bits >> 24) % 17;
        values[i] = static_cast<Quantizer>(exponent << 7 | (bits >> 32 & 7) << 4 | zero);
      }
      if (planted) values[5] = 8;
    };
  }
  std::size_t first_weights() const { return 2 * ffn_ * hidden_; }
  std::size_t weights() const { return 3 * ffn_ * hidden_; }
  Cost cost_of(double bytes_of_weight) const {
    const auto product = [&](double count, double in, double out) {
      return Cost{
          .flops = 2 * count * static_cast<double>(tokens_), .math = Math::bf16, .bytes = bytes_of_weight * count + in + out};
    };
    const auto first = static_cast<double>(first_weights());
    return in_turn({product(first, static_cast<double>(x_.bytes()), 0), product(first / 2, 0, static_cast<double>(y_.bytes()))});
  }
  Codes codes(bool down) const {
    if (down) return {codes_.get() + first_weights(), quantizers_.get() + first_weights() / group, u32(hidden_), u32(ffn_)};
    return {codes_, quantizers_, u32(2 * ffn_), u32(hidden_)};
  }
  template <Layout layout>
  Product product(bool down) const {
    constexpr auto place = static_cast<std::size_t>(layout);
    if (down)
      return {words_[place].get() + first_weights() / 8,
              packed_[place].get() + first_weights() / group,
              activations_,
              y_,
              nullptr,
              u32(hidden_),
              u32(ffn_)};
    return {words_[place].get(), packed_[place].get(), x_, nullptr, activations_, u32(ffn_), u32(hidden_)};
  }
  template <class Act>
  void with_tokens(const Act& act) const {
    dispatch<1, 4, 8>("tokens", tokens_, act);
  }
  static unsigned u32(std::size_t count) { return static_cast<unsigned>(count); }
  static unsigned blocks(std::size_t items, unsigned of_block) { return u32((items + of_block - 1) / of_block); }

  std::size_t hidden_, ffn_, tokens_;
  Input<std::uint8_t> codes_;  // [gates, ups][hidden], then [hidden][ffn]
  Input<Quantizer> quantizers_;
  Input<bf16> x_;
  Output<float> y_;
  Scratch<bf16> activations_;
  Scratch<float> gates_and_ups_;
  Scratch<bf16> wide_;
  std::array<Scratch<unsigned>, 4> words_;  // by layout
  std::array<Scratch<Quantizer>, 4> packed_;
  Scratch<double> exact_;
  LibraryMatmul up_, down_;
  bool reproducible_;
  std::vector<double> reference_;  // [token][row]
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair weight_only_int4{
    .teaches =
        "INT4 weights are a quarter of the bytes; how near the time comes to a quarter is decided by what unpacking one costs",
    .lesson = "awq_interleaved",
    .make = make<WeightOnlyInt4>,
    .baseline = {.name = "cublas_bf16",
                 .run = call<&WeightOnlyInt4::cublas_bf16>,
                 .prepare = call<&WeightOnlyInt4::expand_and_tune>,
                 .needs = {.libraries = {Library::cublaslt}}},
    .optimized = variants({{.name = "gptq_layout",
                            .run = call<&WeightOnlyInt4::gptq_layout>,
                            .prepare = call<&WeightOnlyInt4::pack<Layout::gptq>>,
                            .kernels = nothing_spilled},
                           {.name = "repacked",
                            .run = call<&WeightOnlyInt4::rows<Layout::rows, OneByOne>>,
                            .prepare = call<&WeightOnlyInt4::pack<Layout::rows>>,
                            .kernels = nothing_spilled},
                           {.name = "awq_interleaved",
                            .run = call<&WeightOnlyInt4::rows<Layout::interleaved, InPairs>>,
                            .prepare = call<&WeightOnlyInt4::pack<Layout::interleaved>>,
                            .kernels = nothing_spilled},
                           {.name = "awq_mma",
                            .run = call<&WeightOnlyInt4::awq_mma>,
                            .prepare = call<&WeightOnlyInt4::pack<Layout::fragments>>,
                            .kernels = nothing_spilled}}),
    .controls =
        variants({{.name = "words_alone",
                   .run = call<&WeightOnlyInt4::words_alone>,
                   .prepare = call<&WeightOnlyInt4::pack<Layout::interleaved>>,
                   .outputs = no_outputs},
                  {.name = "bf16_gemv", .run = call<&WeightOnlyInt4::bf16_gemv>, .prepare = call<&WeightOnlyInt4::expand>}}),
    .bound = Bound::memory,
    // The activations are rounded to bf16 once, 1.6e-3, and nothing else is; at an edge few of them make up most of a result.
    .tolerance = within(4e-3),
    .sizes = sizes({{.name = "hidden", .full = 8192, .multiple = step, .scales = false},
                    {.name = "ffn", .full = 28672, .multiple = step},
                    {.name = "tokens", .full = 1, .most = 8, .scales = false},
                    option("planted")}),
    .sweep = cases({{"tokens_1", "tokens=1"}, {"tokens_4", "tokens=4"}, {"tokens_8", "tokens=8"}}),
    .edges = cases({{"one_step", "hidden=1024,ffn=1024"},
                    {"planted", "hidden=2048,ffn=5120,planted=1"},
                    {"planted_for_four", "hidden=1024,ffn=3072,tokens=4,planted=1"},
                    {"planted_for_eight", "hidden=3072,ffn=1024,tokens=8,planted=1"}}),
};

}  // namespace aisp::ch16
