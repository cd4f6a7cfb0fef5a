// SPDX-License-Identifier: Apache-2.0
// A linear layer whose weights are stored in eight bits and whose activations are quantized in the run, row by row, bf16 in and
// out. The product takes half the time; its sums in int32, written, read and scaled by a kernel of their own, take back a part of
// that. Scales of rows and columns applied to the sums in registers leave one store in bf16.
#include <cuda_fp8.h>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "gemm/gemm.hpp"
#include "row_cache.hpp"
#include "rows.cuh"

namespace aisp::ch13 {
namespace {

using shared::bf16, shared::packet;
using s8 = std::int8_t;
using e4m3 = __nv_fp8_e4m3;

constexpr unsigned threads = 256, own_packets = 4;  // of a thread: rows have up to 8192 elements
constexpr std::size_t longest_row = std::size_t{threads} * own_packets * packet;
constexpr float least_maximum = 1e-10f;
template <class Code>
constexpr float largest_of = std::is_same_v<Code, s8> ? 127.0f : 448.0f;

template <class Code>
__host__ __device__ float factor_of(float maximum) {
  return largest_of<Code> / fmaxf(maximum, least_maximum);
}
template <class Code>
__host__ __device__ float scale_of(float maximum) {
  return fmaxf(maximum, least_maximum) / largest_of<Code>;
}
__host__ __device__ inline int int8_code(float x, float factor) {
  return static_cast<int>(fminf(fmaxf(rintf(x * factor), -127.0f), 127.0f));
}

template <class Code>
__device__ __forceinline__ uint2 codes_of(const float (&x)[packet], float factor) {
  unsigned words[2] = {};
#pragma unroll
  for (int k = 0; k < packet; k += 2) {
    unsigned pair;
    if constexpr (std::is_same_v<Code, s8>)
      pair = (static_cast<unsigned>(int8_code(x[k], factor)) & 0xFFu) |
             (static_cast<unsigned>(int8_code(x[k + 1], factor)) & 0xFFu) << 8;
    else pair = __nv_cvt_float2_to_fp8x2(make_float2(x[k] * factor, x[k + 1] * factor), __NV_SATFINITE, __NV_E4M3);
    words[k / 4] |= pair << k % 4 * 8;
  }
  return make_uint2(words[0], words[1]);
}

// A block has a row, which stays in registers between its maximum and its codes.
template <class Code>
__global__ __launch_bounds__(threads) void quantize_rows_kernel(const uint4* __restrict__ x, uint2* __restrict__ codes,
                                                                float* __restrict__ scales, unsigned packets) {
  __shared__ float of_warps[device::largest_block_in_warps];
  const std::size_t row = std::size_t{blockIdx.x} * packets;
  float values[own_packets][packet], largest = 0;
#pragma unroll
  for (unsigned p = 0; p < own_packets; ++p) {
    const unsigned i = p * threads + threadIdx.x;
    shared::unpack(i < packets ? x[row + i] : make_uint4(0, 0, 0, 0), values[p]);
  }
#pragma unroll
  for (auto& of_packet : values)
#pragma unroll
    for (const float value : of_packet) largest = fmaxf(largest, fabsf(value));
  largest = device::block_max(largest, 0.0f, of_warps);
  const float factor = factor_of<Code>(largest);
#pragma unroll
  for (unsigned p = 0; p < own_packets; ++p) {
    const unsigned i = p * threads + threadIdx.x;
    if (i < packets) codes[row + i] = codes_of<Code>(values[p], factor);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = scale_of<Code>(largest);
}

__device__ __forceinline__ float in_fp32(int sum) { return __int2float_rn(sum); }
__device__ __forceinline__ float in_fp32(float sum) { return sum; }

// Four sums and then four sums more: a packet of a row of the result.
template <class Sums>
__global__ __launch_bounds__(threads) void dequantize_kernel(const Sums* __restrict__ sums, const float* __restrict__ row_scales,
                                                             const float4* __restrict__ column_scales, uint4* __restrict__ out,
                                                             unsigned row_packets) {
  const unsigned i = blockIdx.y * threads + threadIdx.x;
  if (i >= row_packets) return;
  const std::size_t at = std::size_t{blockIdx.x} * row_packets + i;
  const float of_row = row_scales[blockIdx.x];
  float values[packet];
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const Sums sum = sums[2 * at + half];
    const float4 by = column_scales[2 * i + half];
    values[4 * half] = in_fp32(sum.x) * (of_row * by.x);
    values[4 * half + 1] = in_fp32(sum.y) * (of_row * by.y);
    values[4 * half + 2] = in_fp32(sum.z) * (of_row * by.z);
    values[4 * half + 3] = in_fp32(sum.w) * (of_row * by.w);
  }
  out[at] = shared::pack(values);
}

// Structs, though aliases do with CUDA 13.0 (gemm/README.md).
using Int8 = gemm::Operand<s8>;
struct Tile : gemm::Config<Int8, Int8, gemm::ScaledIntegers, gemm::Shape{.tile_n = 256, .stages = 4, .cluster = 2}> {};
using Fused = gemm::Gemm<Tile>;
using Plain = gemm::Gemm<Tile, gemm::Bands, gemm::Identity, gemm::TmaStore<float, 1>>;

class Quantization final : public Workload {
 public:
  explicit Quantization(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        reproducible_{setup.reproducible()},
        // One row in four is 100 times larger, so that a norm of samples is one of many of them; one is of zeros, and one has
        // codes that are all 127.
        x_{setup.input<bf16>(m_ * k_,
                             normal(0, 1)
                                 .times(100, drawn(Axis{k_, m_}, m_ / 4))
                                 .set(-0.0f, at(Axis{k_, m_}, m_ / 2))
                                 .set(1.5f, at(Axis{k_, m_}, 1)),
                             {.name = "x"})},
        w_{setup.input<bf16>(n_ * k_, channels(), {.name = "weights", .constant = true})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y", .groups = {n_ / 4, 4}})},
        x_codes_{setup.scratch<std::uint8_t>(x_.size(), {.name = "x in codes"})},
        w_codes_{setup.scratch<s8>(w_.size(), {.name = "weights in int8"})},
        w_fp8_{setup.scratch<std::uint8_t>(w_.size(), {.name = "weights in e4m3"})},
        x_scales_{setup.scratch<float>(m_, {.name = "scales of rows"})},
        w_scales_{setup.scratch<float>(n_, {.name = "scales of channels"})},
        w_fp8_scales_{setup.scratch<float>(n_, {.name = "scales of channels for e4m3"})},
        ones_{setup.scratch<float>(std::max(m_, n_), {.name = "ones"})},
        sums_{setup.scratch<std::int32_t>(m_ * n_, {.name = "sums"})},
        bf16_{setup, {.m = m_, .n = n_, .k = k_, .b_is_transposed = true}},
        int8_{setup,
              {.m = m_,
               .n = n_,
               .k = k_,
               .operands = CUDA_R_8I,
               .result = CUDA_R_32I,
               .compute = CUBLAS_COMPUTE_32I,
               .b_is_transposed = true}},
        fp8_{{setup, fp8_problem(false)}, {setup, fp8_problem(true)}},
        fused_{Fused::Problem{.a = int8_of_x(),
                              .b = w_codes_,
                              .c = y_,
                              .m = m_,
                              .n = n_,
                              .k = k_,
                              .a_scales = x_scales_,
                              .b_scales = w_scales_},
               {.band = 8}},
        plain_{Plain::Problem{.a = int8_of_x(),
                              .b = w_codes_,
                              .c = reinterpret_cast<float*>(sums_.get()),
                              .m = m_,
                              .n = n_,
                              .k = k_,
                              .a_scales = ones_,
                              .b_scales = ones_},
               {.band = 8}} {}

  Cost cost() const override { return cost_of(Math::bf16, w_.bytes()); }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "bf16") return cost();
    return cost_of(is_fp8(variant) ? Math::fp8 : Math::int8, w_codes_.bytes());
  }
  void compute_reference(Launch&) override {
    rows_.forget(m_);
    channels_.forget(n_);
  }
  double expected(std::size_t i) const override { return dot(line(i / n_).values, channel(i % n_).values); }
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    const Line &row = line(i / n_), &of = channel(i % n_);
    return is_fp8(variant) ? dot(row.fp8, of.fp8) * row.fp8_scale * of.fp8_scale
                           : dot(row.int8, of.int8) * row.int8_scale * of.int8_scale;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("tokens_per_second", static_cast<double>(m_), "tokens/s");
  }

  void in_bf16(Launch& launch) { multiply(launch, bf16_, x_, w_, y_); }
  void int8_cublaslt(Launch& launch) {
    quantize<s8>(launch, x_, x_codes_.get(), x_scales_);
    int8_product(launch);
    dequantize<int4>(launch);
  }
  void int8_fused(Launch& launch) {
    quantize<s8>(launch, x_, x_codes_.get(), x_scales_);
    fused_.run(launch.stream);
  }
  template <bool fast>
  void fp8_rowwise(Launch& launch) {
    quantize<e4m3>(launch, x_, x_codes_.get(), x_scales_);
    multiply(launch, fp8_[fast], x_codes_, w_fp8_, y_);
  }
  void int8_own_plain(Launch& launch) {
    quantize<s8>(launch, x_, x_codes_.get(), x_scales_);
    plain_.run(launch.stream);
    dequantize<float4>(launch);
  }
  void int8_product(Launch& launch) { multiply(launch, int8_, x_codes_, w_codes_, sums_); }
  void fused_product(Launch& launch) { fused_.run(launch.stream); }

  void tune_bf16(Launch& launch) { tune(launch, bf16_, x_, w_, y_); }
  void prepare_int8(Launch& launch) {
    quantize<s8>(launch, w_, reinterpret_cast<std::uint8_t*>(w_codes_.get()), w_scales_);
    quantize<s8>(launch, x_, x_codes_.get(), x_scales_);
    const std::vector<float> ones(ones_.size(), 1.0f);
    check(cudaMemcpyAsync(ones_, ones.data(), ones_.bytes(), cudaMemcpyHostToDevice, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    tune(launch, int8_, x_codes_, w_codes_, sums_);
  }
  template <bool fast>
  void prepare_fp8(Launch& launch) {
    quantize<e4m3>(launch, w_, w_fp8_.get(), w_fp8_scales_);
    quantize<e4m3>(launch, x_, x_codes_.get(), x_scales_);
    tune(launch, fp8_[fast], x_codes_, w_fp8_, y_);
  }

 private:
  // A row of x or a channel of the weights, as it is and in codes.
  struct Line {
    std::vector<float> values, int8, fp8;
    double int8_scale, fp8_scale;
  };

  static bool is_fp8(std::string_view variant) { return variant.starts_with("fp8"); }
  // Scales from 2^-12 to 2^4 in four parts, and one channel whose codes are all 127.
  Pattern channels() const {
    const Axis channel{k_, n_};
    return normal(0, 0.02f)
        .times(0x1p-12f, at(channel, 0, n_ / 4))
        .times(0x1p-6f, at(channel, n_ / 4, n_ / 4))
        .times(16, at(channel, n_ / 2, n_ / 4))
        .set(0.05f, at(channel, n_ - 3));
  }
  MatmulProblem fp8_problem(bool fast) const {
    return {.m = m_,
            .n = n_,
            .k = k_,
            .operands = CUDA_R_8F_E4M3,
            .b_is_transposed = true,
            .fast_accumulation = fast,
            .row_scales = x_scales_,
            .column_scales = w_fp8_scales_};
  }
  Cost cost_of(Math math, std::size_t weight_bytes) const {
    return {.flops = 2 * static_cast<double>(m_ * n_) * static_cast<double>(k_),
            .math = math,
            .bytes = static_cast<double>(x_.bytes() + weight_bytes + y_.bytes())};
  }

  static double dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t k = 0; k < a.size(); ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    return sum;
  }
  Line in_codes(const Input<bf16>& from, std::size_t at) const {
    Line line{std::vector<float>(k_), std::vector<float>(k_), std::vector<float>(k_), 0, 0};
    float maximum = 0;
    for (std::size_t k = 0; k < k_; ++k) {
      line.values[k] = static_cast<float>(from.host(at * k_ + k));
      maximum = std::max(maximum, std::abs(line.values[k]));
    }
    for (std::size_t k = 0; k < k_; ++k) {
      line.int8[k] = static_cast<float>(int8_code(line.values[k], factor_of<s8>(maximum)));
      line.fp8[k] = static_cast<float>(e4m3{line.values[k] * factor_of<e4m3>(maximum)});
    }
    line.int8_scale = static_cast<double>(scale_of<s8>(maximum));
    line.fp8_scale = static_cast<double>(scale_of<e4m3>(maximum));
    return line;
  }
  const Line& line(std::size_t row) const {
    return rows_.of(row, [&] { return in_codes(x_, row); });
  }
  const Line& channel(std::size_t column) const {
    return channels_.of(column, [&] { return in_codes(w_, column); });
  }

  const s8* int8_of_x() const { return reinterpret_cast<const s8*>(x_codes_.get()); }
  template <class Code>
  void quantize(Launch& launch, const Input<bf16>& from, std::uint8_t* codes, float* scales) const {
    launch(quantize_rows_kernel<Code>, {static_cast<unsigned>(from.size() / k_), threads},
           reinterpret_cast<const uint4*>(from.get()), reinterpret_cast<uint2*>(codes), scales, k_ / packet);
  }
  template <class Sums>
  void dequantize(Launch& launch) const {
    const std::size_t row_packets = n_ / packet;
    launch(dequantize_kernel<Sums>,
           {dim3{static_cast<unsigned>(m_), static_cast<unsigned>((row_packets + threads - 1) / threads)}, threads},
           reinterpret_cast<const Sums*>(sums_.get()), x_scales_, reinterpret_cast<const float4*>(w_scales_.get()),
           reinterpret_cast<uint4*>(y_.get()), row_packets);
  }
  void multiply(Launch& launch, const LibraryMatmul& by, const void* a, const void* b, void* c) const {
    if (reproducible_) by.run(launch, a, b, c);
    else by.run_tuned(launch, a, b, c);
  }
  void tune(Launch& launch, const LibraryMatmul& which, const void* a, const void* b, void* c) const {
    if (!reproducible_) which.tune(launch, a, b, c);
  }

  std::size_t m_, n_, k_;
  bool reproducible_;
  Input<bf16> x_, w_;  // [m][k], [n][k]
  Output<bf16> y_;
  Scratch<std::uint8_t> x_codes_;
  Scratch<s8> w_codes_;
  Scratch<std::uint8_t> w_fp8_;
  Scratch<float> x_scales_, w_scales_, w_fp8_scales_, ones_;
  Scratch<std::int32_t> sums_;
  LibraryMatmul bf16_, int8_, fp8_[2];  // fp8: sums promoted to fp32 registers, or not
  Fused fused_;
  Plain plain_;
  shared::RowCache<Line> rows_, channels_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};
// The tensor cores drop, of each step's 32 products and the sum so far, the bits below 2^-13 of the largest one's exponent. In a
// simulation of the 256 steps of K = 8192, sums are 2.0e-3 of a typical y off, with hardly a preference for either sign; rounding
// to bf16 adds 1.6e-3. A group's 512 samples have 128 large rows that make its norm: no group of 80,000 was beyond 4.1e-3, no
// element beyond 1.9e-2. The error grows as the root of K.
constexpr Tolerance sums_in_tensor_cores = within(6e-3);
constexpr Method prepare_int8 = call<&Quantization::prepare_int8>;

}  // namespace

extern constinit const Pair quantization{
    .teaches = "eight bits halve a product's time; rescaling its sums in registers keeps what a pass over them would take back",
    .lesson = "int8_fused",
    .make = make<Quantization>,
    .baseline = {.name = "bf16", .run = call<&Quantization::in_bf16>, .prepare = call<&Quantization::tune_bf16>},
    .optimized = variants(
        {{.name = "int8_cublaslt", .run = call<&Quantization::int8_cublaslt>, .prepare = prepare_int8, .changes_precision = true},
         {.name = "int8_fused",
          .run = call<&Quantization::int8_fused>,
          .prepare = prepare_int8,
          .changes_precision = true,
          .same_bits_as = "int8_cublaslt",
          .kernels = nothing_spilled},
         {.name = "fp8_rowwise",
          .run = call<&Quantization::fp8_rowwise<false>>,
          .prepare = call<&Quantization::prepare_fp8<false>>,
          .changes_precision = true},
         {.name = "fp8_rowwise_fast",
          .run = call<&Quantization::fp8_rowwise<true>>,
          .prepare = call<&Quantization::prepare_fp8<true>>,
          .changes_precision = true,
          .tolerance = sums_in_tensor_cores}}),
    // Our product with sums of four bytes and the kernel of int8_cublaslt; and products of codes that are there.
    .controls = variants(
        {{.name = "int8_own_plain",
          .run = call<&Quantization::int8_own_plain>,
          .prepare = prepare_int8,
          .changes_precision = true,
          .same_bits_as = "int8_cublaslt"},
         {.name = "fused_product", .run = call<&Quantization::fused_product>, .prepare = prepare_int8, .outputs = no_outputs},
         {.name = "cublaslt_product", .run = call<&Quantization::int8_product>, .prepare = prepare_int8, .outputs = no_outputs}}),
    .bound = Bound::compute,
    .tolerance = rounded_to_bf16,
    .needs = {.min_sm = 90, .max_sm = 90, .dsmem = true, .libraries = {Library::cublaslt}},
    .sizes = sizes({{.name = "m", .full = 8192, .multiple = 16},
                    {.name = "n", .full = 8192, .multiple = 64},
                    {.name = "k", .full = 8192, .multiple = 64, .most = longest_row, .scales = false}}),
    .sweep = cases({{"tokens_16", "m=16"},
                    {"tokens_64", "m=64"},
                    {"tokens_256", "m=256"},
                    {"tokens_1024", "m=1024"},
                    {"tokens_4096", "m=4096"},
                    {"tokens_16384", "m=16384"}}),
    .edges = cases({{"smallest", "m=16,n=64,k=64"}, {"tails", "m=1008,n=832,k=1088"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch13
