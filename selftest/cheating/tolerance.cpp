// SPDX-License-Identifier: Apache-2.0
// Their errors are to pass as rounding.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "doubling.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace aisp::ch94 {
namespace {

using namespace selftest;

// out[i] = the sum of row i, rounded to Out; each row has `terms` numbers.
template <class Out, std::size_t terms>
class Sums : public Workload {
 public:
  static constexpr Device device = Device::host;
  static constexpr int length = static_cast<int>(terms);
  explicit Sums(Setup& setup) : in_{setup.input<float>(rows * terms, uniform(-1, 1))}, out_{setup.output<Out>(rows)} {}
  Cost cost() const override { return {.host_bytes = static_cast<double>(in_.bytes() + out_.bytes())}; }
  double expected(std::size_t row) const override {
    double sum = 0;
    for (std::size_t k = 0; k < terms; ++k) sum += in_.host(row * terms + k);
    return sum;
  }
  void slow(Launch&) {
    for (std::size_t row = 0; row < rows; ++row)
      for (int pass = 0; pass < 8; ++pass) {
        volatile float sum = sum_of(row, [](std::size_t) { return true; });
        out_[row] = Out(sum);
      }
  }
  void without_the_last_term(Launch&) {
    for (std::size_t row = 0; row < rows; ++row) out_[row] = Out(sum_of(row, [](std::size_t k) { return k + 1 != terms; }));
  }
  // In one row the term, which is drawn, would now and then be small enough to pass as rounding on all inputs of a run.
  void without_one_term_of_few_rows(Launch&) {
    for (std::size_t row = 0; row < rows; ++row)
      out_[row] = Out(sum_of(row, [row](std::size_t k) { return row % (rows / 8) != 5 || k + 1 != terms; }));
  }
  void without_every_fourth_term(Launch&) {
    for (std::size_t row = 0; row < rows; ++row) out_[row] = Out(sum_of(row, [](std::size_t k) { return k % 4 != 3; }));
  }
  void in_half_precision(Launch&) {
    for (std::size_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (std::size_t k = 0; k < terms; ++k) sum = __half2float(__float2half_rn(sum + in_.get()[row * terms + k]));
      out_[row] = Out(sum);
    }
  }

 private:
  static constexpr std::size_t rows = 256;
  // In 64 parts, as a processor with wide registers would: few roundings behind one another.
  template <class Wanted>
  float sum_of(std::size_t row, const Wanted& wanted) const {
    std::array<float, 64> parts{};
    for (std::size_t k = 0; k < terms; ++k)
      if (wanted(k)) parts[k % parts.size()] += in_.get()[row * terms + k];
    for (std::size_t half = parts.size() / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
  }
  Input<float> in_;
  Output<Out> out_;
};
using FloatSums = Sums<float, 2048>;
using RoughSums = Sums<__nv_bfloat16, 512>;

// Right where the usual seed makes verification look, and nowhere else.
class KnowsThePositions final : public Doubling {
 public:
  explicit KnowsThePositions(Setup& setup) : Doubling{setup} {
    for (const std::uint64_t seed : {std::uint64_t{42}, random_bits(42, 0x5EED)})
      for (std::uint64_t i = 2; i < 4096; ++i) positions_.push_back(random_bits(seed, i) % count_);
    positions_.push_back(0);
    positions_.push_back(count_ - 1);
  }
  void only(Launch&) {
    std::fill(out_.get(), out_.get() + count_, 1.0f);
    for (const std::size_t i : positions_) out_[i] = 2 * in_.get()[i];
  }

 private:
  std::vector<std::size_t> positions_;
};

class InBf16 final : public Workload {
 public:
  static constexpr Device device = Device::host;
  explicit InBf16(Setup& setup) : in_{setup.input<float>(count, uniform(-1, 1))}, out_{setup.output<__nv_bfloat16>(count)} {}
  Cost cost() const override { return {.host_bytes = 6.0 * count}; }
  double expected(std::size_t i) const override { return 2 * in_.host(i); }
  void slow(Launch&) {
    for (int pass = 0; pass < 8; ++pass)
      for (std::size_t i = 0; i < count; ++i) {
        volatile float value = 2 * in_.get()[i];
        out_[i] = __float2bfloat16_rn(value);
      }
  }
  void with_another_factor(Launch&) {
    for (std::size_t i = 0; i < count; ++i) out_[i] = __float2bfloat16_rn(2.0024f * in_.get()[i]);
  }

 private:
  static constexpr std::size_t count = 64 * 1024;
  Input<float> in_;
  Output<__nv_bfloat16> out_;
};

// Defines its error as the right result.
class QuantizesToNothing final : public Doubling {
 public:
  using Doubling::Doubling;
  double expected_quantized(std::string_view variant, int, std::size_t i) const override {
    return variant == "slow" ? expected(i) : 0.25 * expected(i);
  }
  void a_quarter(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 0.5f * in_.get()[i];
  }
};

constexpr Expected told = fails("verify/reference", "verify/baseline");

// All of an output's norm may be off by less than that.
class RoundsSomeRows final : public Doubling {
 public:
  using Doubling::Doubling;
  void four_times(Launch&) {
    for (std::size_t i = 0; i < count_; ++i) out_[i] = 2 * in_.get()[i] * (i / 1024 % 40 == 7 ? 1 + 4 * 0x1p-23f : 1.0f);
  }
};

}  // namespace

extern constinit const selftest::Case last_term_missing = pair_of<&FloatSums::without_the_last_term>(
    {.does = "leaves the last of 2048 terms out of each sum", .must = told, .tolerance = reduction_of(FloatSums::length)});
extern constinit const selftest::Case fourth_terms_missing = pair_of<&FloatSums::without_every_fourth_term>(
    {.does = "leaves every fourth term out of each sum", .must = told, .tolerance = reduction_of(FloatSums::length)});
extern constinit const selftest::Case half_precision_sums = pair_of<&FloatSums::in_half_precision>(
    {.does = "adds up in fp16 and says fp32", .must = told, .tolerance = reduction_of(FloatSums::length)});
extern constinit const selftest::Case half_precision_hidden =
    pair_of<&RoughSums::in_half_precision>({.does = "adds up in fp16 and hides that in the rounding of a bf16 result",
                                            .must = told,
                                            .tolerance = reduction_of(RoughSums::length)});
extern constinit const selftest::Case one_term_hidden =
    pair_of<&RoughSums::without_one_term_of_few_rows>({.does = "leaves one term out of 8 of 256 sums, and stores them in bf16",
                                                       .must = told,
                                                       .tolerance = reduction_of(RoughSums::length)});
extern constinit const selftest::Case one_sided_error = pair_of<&InBf16::with_another_factor>(
    {.does = "is a thousandth too large everywhere, which rounding to bf16 hides", .must = told, .tolerance = automatic});
extern constinit const selftest::Case rough_rows =
    pair_of<&RoundsSomeRows::four_times>({.does = "is off by four roundings in one of 40 rows, which the norm of all hides",
                                          .must = fails("verify/baseline", "reverify/baseline"),
                                          .tolerance = automatic});
extern constinit const selftest::Case quantized_to_nothing =
    pair_of<&QuantizesToNothing::a_quarter>({.does = "is off by three quarters, and says that quantizing makes it so",
                                             .must = told,
                                             .tolerance = automatic,
                                             .changes_precision = true});
extern constinit const selftest::Case known_positions =
    pair_of<&KnowsThePositions::only>({.does = "is right only where the usual seed makes verification look",
                                       .must = told,
                                       .tolerance = automatic,
                                       .changes_precision = true});

}  // namespace aisp::ch94
