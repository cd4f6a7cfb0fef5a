// SPDX-License-Identifier: Apache-2.0
// An INT8 layer whose activations have outliers: a few columns, found in the run, are so large that no scale fits them and the
// rest. They are multiplied in bf16, and as separate steps this takes half as long as the INT8 product again. In one kernel the
// second product is one more step along K: sums of integers become scaled fp32 in the registers in which they are.
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublaslt.hpp>
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gemm/gemm.hpp"
#include "int8_rows.cuh"
#include "row_cache.hpp"

namespace aisp::ch19 {
namespace {

using Int8 = gemm::Operand<std::int8_t>;
constexpr gemm::Shape one_tile_for_both{.tile_n = 256, .stages = 4, .cluster = 2};
constexpr gemm::Shape pingpong{.tile_n = 128, .stages = 6, .pingpong = true, .cluster = 2};
// Structs, though aliases do with CUDA 13.0 (gemm/README.md).
struct OnePart : gemm::Config<Int8, Int8, gemm::ScaledIntegers, one_tile_for_both> {};
struct TwoParts : gemm::Config<Int8, Int8, gemm::IntegersThenBf16, one_tile_for_both> {};
struct TwoPartsPingpong : gemm::Config<Int8, Int8, gemm::IntegersThenBf16, pingpong> {};

class Int8Outliers final : public Workload {
 public:
  explicit Int8Outliers(Setup& setup)
      : m_{setup.size("m")},
        n_{setup.size("n")},
        k_{setup.size("k")},
        outliers_{setup.size("outliers")},
        // Constant, because SmoothQuant's factors are made of it before.
        x_{setup.input<bf16>(m_ * k_, activations(), {.name = "x", .constant = true})},
        w_{setup.input<bf16>(k_ * n_, normal(0, 0.02f), {.name = "weights", .constant = true})},
        y_{setup.output<bf16>(m_ * n_, {.name = "y"})},
        x_codes_{setup.scratch<std::int8_t>(x_.size(), {.name = "x in int8"})},
        w_codes_{setup.scratch<std::int8_t>(w_.size(), {.name = "weights in int8"})},
        smooth_w_codes_{setup.scratch<std::int8_t>(w_.size(), {.name = "smoothed weights in int8"})},
        x_scales_{setup.scratch<float>(m_, {.name = "scales of rows"})},
        maxima_{setup.scratch<float>(m_, {.name = "maxima of rows"})},
        w_scales_{setup.scratch<float>(n_, {.name = "scales of columns"})},
        smooth_w_scales_{setup.scratch<float>(n_, {.name = "scales of smoothed columns"})},
        factors_{setup.scratch<float>(2 * k_, {.name = "factors of x, and of the weights"})},
        flags_{setup.scratch<std::uint8_t>(k_, {.name = "flags"})},
        reference_flags_{setup.scratch<std::uint8_t>(k_, {.name = "flags of the reference"})},
        columns_{setup.scratch<int>(capacity(), {.name = "outliers' columns"})},
        count_{setup.scratch<int>(1, {.name = "number of outliers"})},
        x_outliers_{setup.scratch<bf16>(m_ * capacity(), {.name = "outliers of x"})},
        w_outliers_{setup.scratch<bf16>(capacity() * n_, {.name = "weights of outliers"})},
        sums_{setup.scratch<int>(m_ * n_, {.name = "sums in int32"})},
        int8_{setup,
              {.m = m_,
               .n = n_,
               .k = k_,
               .operands = CUDA_R_8I,
               .result = CUDA_R_32I,
               .compute = CUBLAS_COMPUTE_32I,
               .b_is_transposed = true}},
        bf16_{setup, {.m = m_, .n = n_, .k = capacity()}},
        reproducible_{setup.reproducible()},
        one_part_{one_part(w_codes_, w_scales_)},
        smooth_{one_part(smooth_w_codes_, smooth_w_scales_)},
        two_parts_{two_parts<TwoParts>(), {.band = 8}},
        two_parts_pingpong_{two_parts<TwoPartsPingpong>(), {.band = 8}} {
    if (outliers_ > k_) throw Unsupported{"there are no more outliers than columns"};
  }

  Cost cost() const override {
    Cost cost = without_outliers();
    cost.more_math = {{2.0 * static_cast<double>(m_ * n_) * static_cast<double>(outliers_), Math::bf16}};
    return cost;
  }
  Cost variant_cost(std::string_view variant) const override {
    if (variant == "smoothquant" || variant == "plain_int8") return without_outliers();
    if (variant == "own_product" || variant == "cublaslt_int8") {
      Cost cost = without_outliers();
      cost.bytes = static_cast<double>(x_codes_.bytes() + w_codes_.bytes()) +
                   static_cast<double>(variant == "own_product" ? y_.bytes() : sums_.bytes());
      return cost;
    }
    return cost();
  }

  void compute_reference(Launch& launch) override {
    std::vector<std::uint8_t> flags(k_);
    factors_on_host_.resize(2 * k_);
    launch(reference_flags_kernel, {blocks(k_, 64), 64}, x_.get(), reference_flags_, m_, k_);
    check(cudaMemcpyAsync(flags.data(), reference_flags_, k_, cudaMemcpyDeviceToHost, launch.stream));
    check(cudaMemcpyAsync(factors_on_host_.data(), factors_, factors_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
    check(cudaStreamSynchronize(launch.stream));
    is_outlier_.assign(flags.begin(), flags.end());
    rows_.forget(m_);
    weights_.forget(n_);
  }
  double expected(std::size_t i) const override {
    const Row& row = row_of(i);
    const Weights& of = weights_of(i);
    double outliers = 0;
    for (std::size_t k = 0; k < k_; ++k)
      if (is_outlier_[k] != 0) outliers += static_cast<double>(row.values[k]) * w_.host(k * n_ + i % n_);
    return product(row.inliers, of.plain) + outliers;
  }
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    if (variant == "smoothquant") return product(row_of(i).smooth, weights_of(i).smooth);
    if (variant == "plain_int8") return product(row_of(i).whole, weights_of(i).plain);
    return expected(i);
  }

  void llm_int8(Launch& launch) {
    const dim3 strips{blocks(packets(), flag_threads), blocks(m_, flag_rows)};
    check(cudaMemsetAsync(flags_, 0, k_, launch.stream));
    launch(flag_columns_kernel, {strips, flag_threads}, packets_of(x_), flags_, m_, packets());
    launch(list_columns_kernel, {1, list_threads}, found(), k_);
    launch(quantize_inliers_kernel, {rows(), row_threads}, packets_of(x_), flags_, codes(), x_scales_, packets());
    launch(gather_rows_kernel, {rows(), 64}, x_.get(), found(), x_outliers_, k_);
    launch(gather_weights_kernel, {static_cast<unsigned>(capacity()), row_threads}, packets_of(w_), found(),
           reinterpret_cast<uint4*>(w_outliers_.get()), n_ / packet);
    multiply_in_steps(launch);
  }
  void two_pass_prologue(Launch& launch) {
    prologue(launch);
    multiply_in_steps(launch);
  }
  void fused_dequant(Launch& launch) {
    prologue(launch);
    one_part_.run(launch.stream);
    add_outliers(launch);
  }
  void two_part_wgmma(Launch& launch) {
    prologue(launch);
    two_parts_.run(launch.stream);
  }
  void two_part_pingpong(Launch& launch) {
    prologue(launch);
    two_parts_pingpong_.run(launch.stream);
  }
  void smoothquant(Launch& launch) {
    launch(quantize_whole_rows_kernel, {rows(), row_threads}, packets_of(x_), reinterpret_cast<const float4*>(factors_.get()),
           codes(), x_scales_, packets());
    smooth_.run(launch.stream);
  }
  void plain_int8(Launch& launch) {
    launch(quantize_whole_rows_kernel, {rows(), row_threads}, packets_of(x_), static_cast<const float4*>(nullptr), codes(),
           x_scales_, packets());
    own_product(launch);
  }
  void own_product(Launch& launch) { one_part_.run(launch.stream); }
  void cublaslt_int8(Launch& launch) { int8_.run_tuned(launch, x_codes_, w_codes_, sums_); }

  void quantize_weights(Launch& launch) {
    launch(quantize_weights_kernel, {blocks(n_, 64), 64}, w_.get(), static_cast<const float*>(nullptr), w_codes_, w_scales_, k_,
           n_);
  }
  void smooth_weights(Launch& launch) {
    launch(smoothing_kernel, {static_cast<unsigned>(k_), row_threads}, x_.get(), w_.get(), factors_, factors_.get() + k_, m_, k_,
           n_);
    launch(quantize_weights_kernel, {blocks(n_, 64), 64}, w_.get(), factors_.get() + k_, smooth_w_codes_, smooth_w_scales_, k_,
           n_);
  }
  void tune_products(Launch& launch) {
    quantize_weights(launch);
    if (reproducible_) return;
    int8_.tune(launch, x_codes_, w_codes_, sums_);
    tune_outliers(launch);
  }
  void tune_outliers(Launch& launch) {
    quantize_weights(launch);
    if (!reproducible_) bf16_.tune(launch, x_outliers_, w_outliers_, y_);
  }
  // For what multiplies alone.
  void quantize_once(Launch& launch) {
    quantize_weights(launch);
    prologue(launch);
  }
  void tune_int8(Launch& launch) {
    quantize_once(launch);
    int8_.tune(launch, x_codes_, w_codes_, sums_);
  }

 private:
  struct Codes {
    std::vector<std::int8_t> codes;
    double scale = 1;
  };
  struct Row {
    std::vector<float> values;
    Codes inliers, whole, smooth;
  };
  struct Weights {
    Codes plain, smooth;
  };
  using Scaled = gemm::Gemm<OnePart>;

  std::size_t capacity() const { return std::max<std::size_t>(64, (outliers_ + 63) / 64 * 64); }
  static unsigned blocks(std::size_t count, unsigned of) { return static_cast<unsigned>((count + of - 1) / of); }
  unsigned rows() const { return static_cast<unsigned>(m_); }
  unsigned packets() const { return static_cast<unsigned>(k_ / packet); }
  static const uint4* packets_of(const bf16* from) { return reinterpret_cast<const uint4*>(from); }
  uint2* codes() const { return reinterpret_cast<uint2*>(x_codes_.get()); }
  Outliers found() const { return {flags_, columns_, count_, static_cast<unsigned>(capacity())}; }
  Cost without_outliers() const {
    return {.flops = 2.0 * static_cast<double>(m_ * n_) * static_cast<double>(k_),
            .math = Math::int8,
            .bytes = static_cast<double>(x_.bytes() + w_codes_.bytes() + y_.bytes())};
  }
  Scaled one_part(const std::int8_t* weights, const float* scales) const {
    return Scaled{Scaled::Problem{
                      .a = x_codes_, .b = weights, .c = y_, .m = m_, .n = n_, .k = k_, .a_scales = x_scales_, .b_scales = scales},
                  {.band = 8}};
  }
  template <class C>
  typename gemm::Gemm<C>::Problem two_parts() const {
    return {.a = x_codes_,
            .b = w_codes_,
            .c = y_,
            .m = m_,
            .n = n_,
            .k = k_,
            .a_scales = x_scales_,
            .b_scales = w_scales_,
            .a2 = x_outliers_,
            .b2 = w_outliers_,
            .k2 = capacity(),
            .used = count_};
  }

  // Columns 20 to 100 times larger at places that change with the seed, two neighbours at the beginning, the last one; and a row
  // of zeros. No other value comes near the threshold, so that some rows have large values only there.
  Pattern activations() const {
    const Axis columns{1, k_}, all_rows{k_, m_};
    Pattern pattern = normal(0, 1);
    if (outliers_ > 3) pattern = pattern.times(20, 100, drawn(columns, outliers_ - 3));
    if (outliers_ > 0) pattern = pattern.times(60, at(columns, 0, std::min<std::size_t>(outliers_, 2)));
    if (outliers_ > 2) pattern = pattern.times(60, at(columns, k_ - 1));
    return pattern.set(-0.0f, at(all_rows, m_ / 2));
  }

  // Computes the results of the two passes: codes, scales, and the outliers' operands.
  void prologue(Launch& launch) const {
    constexpr unsigned warps = survey_threads / 32;
    check(cudaMemsetAsync(flags_, 0, k_, launch.stream));
    launch(survey_kernel, {std::min(blocks(m_, warps), multiprocessors() * 8), survey_threads}, packets_of(x_), flags_, maxima_,
           m_, packets());
    launch(list_columns_kernel, {1, list_threads}, found(), k_);
    launch(quantize_and_gather_kernel, {rows() + static_cast<unsigned>(capacity()), row_threads}, packets_of(x_), packets_of(w_),
           maxima_, found(), codes(), x_scales_, x_outliers_, reinterpret_cast<uint4*>(w_outliers_.get()), m_, packets(),
           n_ / packet);
  }
  void multiply_in_steps(Launch& launch) const {
    if (reproducible_) int8_.run(launch, x_codes_, w_codes_, sums_);
    else int8_.run_tuned(launch, x_codes_, w_codes_, sums_);
    launch(dequantize_kernel, {dim3{rows(), blocks(n_ / packet, row_threads)}, row_threads},
           reinterpret_cast<const int4*>(sums_.get()), x_scales_, reinterpret_cast<const float4*>(w_scales_.get()),
           reinterpret_cast<uint4*>(y_.get()), n_ / packet);
    add_outliers(launch);
  }
  // How many there are is known here, as it is to a framework, which waits for the number.
  void add_outliers(Launch& launch) const {
    if (outliers_ == 0) return;
    if (reproducible_) bf16_.run(launch, x_outliers_, w_outliers_, y_, 1, 1);
    else bf16_.run_tuned(launch, x_outliers_, w_outliers_, y_, 1, 1);
  }

  static Codes quantized(const std::vector<float>& values, float maximum) {
    Codes result{std::vector<std::int8_t>(values.size()), static_cast<double>(int8_scale(maximum))};
    for (std::size_t i = 0; i < values.size(); ++i)
      result.codes[i] = static_cast<std::int8_t>(int8_code(values[i], int8_factor(maximum)));
    return result;
  }
  static Codes quantized(const std::vector<float>& values) {
    float maximum = 0;
    for (const float value : values) maximum = std::max(maximum, std::abs(value));
    return quantized(values, maximum);
  }
  std::vector<float> times_factors(std::vector<float> values, std::size_t first) const {
    for (std::size_t k = 0; k < k_; ++k) values[k] *= factors_on_host_[first + k];
    return values;
  }
  const Row& row_of(std::size_t i) const {
    return rows_.of(i / n_, [&] {
      Row row{.values = std::vector<float>(k_), .inliers = {}, .whole = {}, .smooth = {}};
      for (std::size_t k = 0; k < k_; ++k) row.values[k] = static_cast<float>(x_.host(i / n_ * k_ + k));
      std::vector<float> inliers = row.values;
      float maximum = 0;
      for (std::size_t k = 0; k < k_; ++k) {
        if (std::abs(inliers[k]) < outlier_threshold) maximum = std::max(maximum, std::abs(inliers[k]));
        if (is_outlier_[k] != 0) inliers[k] = 0;
      }
      row.inliers = quantized(inliers, maximum);
      row.whole = quantized(row.values);
      row.smooth = quantized(times_factors(row.values, 0));
      return row;
    });
  }
  const Weights& weights_of(std::size_t i) const {
    return weights_.of(i % n_, [&] {
      std::vector<float> column(k_);
      for (std::size_t k = 0; k < k_; ++k) column[k] = static_cast<float>(w_.host(k * n_ + i % n_));
      return Weights{quantized(column), quantized(times_factors(column, k_))};
    });
  }
  static double product(const Codes& a, const Codes& b) {
    std::int64_t sum = 0;
    for (std::size_t k = 0; k < a.codes.size(); ++k) sum += a.codes[k] * b.codes[k];
    return static_cast<double>(sum) * a.scale * b.scale;
  }

  std::size_t m_, n_, k_, outliers_;
  Input<bf16> x_, w_;  // w[k][n]
  Output<bf16> y_;
  Scratch<std::int8_t> x_codes_, w_codes_, smooth_w_codes_;  // of weights: [n][k]
  Scratch<float> x_scales_, maxima_, w_scales_, smooth_w_scales_, factors_;
  Scratch<std::uint8_t> flags_, reference_flags_;
  Scratch<int> columns_, count_;
  Scratch<bf16> x_outliers_, w_outliers_;
  Scratch<int> sums_;
  LibraryMatmul int8_, bf16_;
  bool reproducible_;
  Scaled one_part_, smooth_;
  gemm::Gemm<TwoParts> two_parts_;
  gemm::Gemm<TwoPartsPingpong> two_parts_pingpong_;
  std::vector<std::uint8_t> is_outlier_;
  std::vector<float> factors_on_host_;
  shared::RowCache<Row> rows_;
  shared::RowCache<Weights> weights_;
};

constexpr KernelLimits nothing_spilled{.local_bytes = 0};

}  // namespace

extern constinit const Pair int8_outliers{
    .teaches =
        "outlier columns that INT8 cannot hold need no product of their own where both kinds of sums share their registers",
    .lesson = "two_part_wgmma",
    .make = make<Int8Outliers>,
    .baseline = {.name = "llm_int8", .run = call<&Int8Outliers::llm_int8>, .prepare = call<&Int8Outliers::tune_products>},
    .optimized = variants(
        {{.name = "two_pass_prologue",
          .run = call<&Int8Outliers::two_pass_prologue>,
          .prepare = call<&Int8Outliers::tune_products>},
         {.name = "fused_dequant", .run = call<&Int8Outliers::fused_dequant>, .prepare = call<&Int8Outliers::tune_outliers>},
         {.name = "two_part_wgmma",
          .run = call<&Int8Outliers::two_part_wgmma>,
          .prepare = call<&Int8Outliers::quantize_weights>,
          .kernels = nothing_spilled},
         {.name = "smoothquant",
          .run = call<&Int8Outliers::smoothquant>,
          .prepare = call<&Int8Outliers::smooth_weights>,
          .changes_precision = true,
          .gains_over = "two_part_wgmma",
          .kernels = nothing_spilled}}),
    .controls = variants({// Tiles of half the size in turns, which hide the stores and load more.
                          {.name = "two_part_pingpong",
                           .run = call<&Int8Outliers::two_part_pingpong>,
                           .prepare = call<&Int8Outliers::quantize_weights>,
                           .kernels = nothing_spilled},
                          // The cost of outliers, and the error that they would make.
                          {.name = "plain_int8",
                           .run = call<&Int8Outliers::plain_int8>,
                           .prepare = call<&Int8Outliers::quantize_weights>,
                           .changes_precision = true,
                           .kernels = nothing_spilled},
                          // Our INT8 product alone, of rows that were quantized before, and below the library's.
                          {.name = "own_product",
                           .run = call<&Int8Outliers::own_product>,
                           .prepare = call<&Int8Outliers::quantize_once>,
                           .outputs = no_outputs,
                           .kernels = nothing_spilled},
                          {.name = "cublaslt_int8",
                           .run = call<&Int8Outliers::cublaslt_int8>,
                           .prepare = call<&Int8Outliers::tune_int8>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Sums of integers are exact until they become fp32, 6e-8, and one rounding to bf16 is 1.6e-3. In steps the sums of the
    // integers are rounded to bf16, too, before the outliers' are added, which are larger as a rule.
    .tolerance = within(4e-3),
    .needs = {.min_sm = 90, .max_sm = 90, .dsmem = true, .libraries = {Library::cublaslt}},
    .sizes = sizes({{.name = "m", .full = 8192, .multiple = 16},
                    {.name = "n", .full = 8192, .multiple = 64},
                    {.name = "k", .full = 8192, .multiple = 16, .most = most_row_packets * packet, .scales = false},
                    {.name = "outliers", .full = 64, .least = 0, .most = 4096, .scales = false}}),
    .sweep = cases({{"outliers_0", "outliers=0"},
                    {"outliers_16", "outliers=16"},
                    {"outliers_64", "outliers=64"},
                    {"outliers_128", "outliers=128"},
                    {"outliers_256", "outliers=256"},
                    {"outliers_512", "outliers=512"}}),
    .edges = cases({{"smallest", "m=16,n=64,k=16,outliers=1"},
                    {"no_outliers", "m=272,n=320,k=528,outliers=0"},
                    {"tails", "m=1008,n=832,k=1040,outliers=96"},
                    {"two_neighbours", "m=144,n=128,k=256,outliers=2"},
                    {"nine_steps", "m=512,n=512,k=4096,outliers=520"}}),
};

}  // namespace aisp::ch19
