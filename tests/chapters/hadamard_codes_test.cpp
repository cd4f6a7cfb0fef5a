// SPDX-License-Identifier: Apache-2.0
// How many codes change when a row with outlier channels is rotated in two products, each rounded to bf16, as a library does it.
#include "ch19/hadamard_codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace aisp::ch19 {
namespace {

constexpr std::size_t looked_at = 16;  // rows, as in the pair
constexpr double codes_each_side = 7;

double rounded_to_bf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
}

// Rotates `count` elements `stride` apart.
void rotate(double* x, std::size_t count, std::size_t stride) {
  for (std::size_t distance = 1; distance < count; distance *= 2)
    for (std::size_t i = 0; i < count; ++i) {
      if ((i & distance) != 0) continue;
      double &a = x[i * stride], &b = x[(i + distance) * stride];
      const double sum = a + b;
      b = a - b;
      a = sum;
    }
}

void divide_and_round(std::vector<double>& x, std::size_t count) {
  for (double& value : x) value = rounded_to_bf16(value / std::sqrt(static_cast<double>(count)));
}

// `scale_error`: of the scale, a planted fault.
std::vector<double> codes_of(const std::vector<double>& rotated, double scale_error = 0) {
  double maximum = 0;
  for (const double value : rotated) maximum = std::max(maximum, std::abs(value));
  std::vector<double> codes;
  for (const double value : rotated) codes.push_back(std::nearbyint(value * codes_each_side / (maximum * (1 + scale_error))));
  return codes;
}

class Rows {
 public:
  explicit Rows(std::size_t columns) : columns_{columns} {}

  // In one draw of outlier channels and rows.
  double changed(double scale_error = 0) {
    std::vector<double> channels(columns_, 1);
    for (int i = 0; i < 8; ++i) channels[random_() % columns_] = 100;
    double changed = 0;
    for (std::size_t row = 0; row < looked_at; ++row) {
      std::vector<double> x;
      for (const double channel : channels) x.push_back(rounded_to_bf16(channel * normal_(random_)));
      const std::vector<double> rounded = codes_of(in_two_products(x), scale_error);
      rotate(x.data(), columns_, 1);
      const std::vector<double> exact = codes_of(x);
      for (std::size_t i = 0; i < columns_; ++i) changed += exact[i] != rounded[i];
    }
    return changed;
  }

 private:
  std::vector<double> in_two_products(std::vector<double> x) const {
    const std::size_t inner = std::min<std::size_t>(columns_, 128), outer = columns_ / inner;
    for (std::size_t i = 0; i < outer; ++i) rotate(x.data() + i * inner, inner, 1);
    divide_and_round(x, inner);
    if (outer == 1) return x;
    for (std::size_t i = 0; i < inner; ++i) rotate(x.data() + i, outer, inner);
    divide_and_round(x, outer);
    return x;
  }

  std::size_t columns_;
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
};

// At each size mean and deviation of so many draws that both are known to a tenth.
TEST(ChangedCodes, OfCorrectRotationsStaySixDeviationsBelowTheirLimit) {
  struct Size {
    std::size_t columns;
    int draws;
  };
  for (const auto& [columns, draws] : {Size{128, 4000}, Size{512, 800}, Size{2048, 300}, Size{8192, 150}, Size{32768, 40}}) {
    Rows rows{columns};
    double sum = 0, squares = 0;
    for (int i = 0; i < draws; ++i) {
      const double changed = rows.changed();
      sum += changed;
      squares += changed * changed;
    }
    const double mean = sum / draws, deviation = std::sqrt(squares / draws - mean * mean);
    const double limit = most_changed_codes(looked_at * columns);
    EXPECT_LT(mean + 6 * deviation, limit) << columns << " columns: " << mean << " with a deviation of " << deviation;
    EXPECT_GT(mean + 18 * deviation, limit) << columns << " columns: no fault must hide in it";
  }
}

TEST(ChangedCodes, OfAScaleThatIsOnePercentOffAreMore) {
  for (const std::size_t columns : {2048, 8192}) {
    Rows rows{columns};
    for (int i = 0; i < 10; ++i) EXPECT_GT(rows.changed(0.01), most_changed_codes(looked_at * columns)) << columns;
  }
}

}  // namespace
}  // namespace aisp::ch19
