// SPDX-License-Identifier: Apache-2.0
// Errors that the limits let through and errors that they stop, planted in products of random matrices.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <aisp/tolerance.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "pair/memory/memory.hpp"

namespace aisp {
namespace {

template <class T>
double rounded(double value) {
  return static_cast<double>(static_cast<float>(static_cast<T>(static_cast<float>(value))));
}

// rows x columns sums of k products of values from [-1, 1), rounded to T.
template <class T>
class Product {
 public:
  Product(int rows, int columns, int k) : rows_{rows}, columns_{columns}, k_{k} {
    std::mt19937 random{7};
    std::uniform_real_distribution<float> values{-1, 1};
    for (auto* matrix : {&a_, &b_}) {
      matrix->resize(static_cast<std::size_t>((matrix == &a_ ? rows : columns) * k));
      for (float& value : *matrix) value = values(random);
    }
  }
  using Sum = std::function<double(const float* a, const float* b, int k)>;
  std::vector<T> all(const Sum& sum) const {
    std::vector<T> result;
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j) result.push_back(static_cast<T>(static_cast<float>(sum(&a_[row(i)], &b_[row(j)], k_))));
    return result;
  }
  // Whether a variant that is wrong in this way passes: it lies within both limits of a correct baseline, or not.
  bool passes(const std::vector<T>& found) const {
    const std::vector<T> honest = all(exact_sum);
    const Tolerance limits = resolve(reduction_of(k_), element_type<T>());
    const pair::Norms norms = pair::compare({found.data(), element_type<T>(), sizeof(T), found.size(), -1},
                                            {honest.data(), element_type<T>(), sizeof(T), honest.size(), -1});
    return norms.relative_l2() <= 2 * limits.relative_l2 && norms.largest_element_error <= 2 * limits.element;
  }
  // The same against float64.
  bool passes_reference(const std::vector<T>& found) const {
    const Tolerance limits = resolve(reduction_of(k_), element_type<T>());
    double difference = 0, squares = 0, largest = 0;
    std::size_t n = 0;
    std::vector<double> truth;
    for (int i = 0; i < rows_; ++i)
      for (int j = 0; j < columns_; ++j) truth.push_back(exact_sum(&a_[row(i)], &b_[row(j)], k_));
    for (const double value : truth) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(truth.size()));
    for (const T& value : found) {
      const double off = std::abs(static_cast<double>(static_cast<float>(value)) - truth[n]);
      difference += off * off;
      largest = std::max(largest, off / (std::abs(truth[n]) + rms));
      ++n;
    }
    return std::sqrt(difference / squares) <= limits.relative_l2 && largest <= limits.element;
  }
  static double exact_sum(const float* a, const float* b, int k) {
    double sum = 0;
    for (int i = 0; i < k; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  }
  static double fp32_sum(const float* a, const float* b, int k) {
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += a[i] * b[i];
    return static_cast<double>(sum);
  }
  static double fp16_sum(const float* a, const float* b, int k) {
    double sum = 0;
    for (int i = 0; i < k; ++i) sum = rounded<__half>(sum + static_cast<double>(a[i]) * static_cast<double>(b[i]));
    return sum;
  }
  // As parts of 64 terms in fp16, which fp32 adds up.
  static double fp16_parts(const float* a, const float* b, int k) {
    double sum = 0;
    for (int i = 0; i < k; i += 64) sum += fp16_sum(a + i, b + i, std::min(64, k - i));
    return sum;
  }
  static double without_last_term(const float* a, const float* b, int k) { return exact_sum(a, b, k - 1); }
  static double three_quarters(const float* a, const float* b, int k) { return exact_sum(a, b, k / 4 * 3); }

  std::size_t at(int i, int j) const {
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(j);
  }
  int rows() const { return rows_; }
  int columns() const { return columns_; }

 private:
  std::size_t row(int i) const { return static_cast<std::size_t>(i) * static_cast<std::size_t>(k_); }
  int rows_, columns_, k_;
  std::vector<float> a_, b_;
};

template <class T>
void expect_limits_to_tell(int k) {
  const Product<T> product{96, 64, k};
  using P = Product<T>;
  SCOPED_TRACE(testing::Message() << "k " << k << ", type " << static_cast<int>(element_type<T>()));
  EXPECT_TRUE(product.passes_reference(product.all(P::exact_sum)));
  EXPECT_TRUE(product.passes_reference(product.all(P::fp32_sum)));
  EXPECT_TRUE(product.passes(product.all(P::fp32_sum)));
  EXPECT_FALSE(product.passes_reference(product.all(P::fp16_sum)));
  EXPECT_FALSE(product.passes_reference(product.all(P::without_last_term)));
  EXPECT_FALSE(product.passes_reference(product.all(P::three_quarters)));
  std::vector<T> found = product.all(P::exact_sum);
  const std::vector<T> shorter = product.all(P::without_last_term);
  for (int i = 0; i < product.rows(); ++i) found[product.at(i, 40)] = shorter[product.at(i, 40)];
  // The largest of a column's errors decides; a matrix of thousands of rows has larger ones than this.
  if (k <= 1024 || element_type<T>() == ElementType::f32) {
    EXPECT_FALSE(product.passes(found)) << "the last term of one column was left out";
  }
  found = product.all(P::exact_sum);
  for (int j = 0; j < product.columns(); ++j) found[product.at(50, j)] = found[product.at(51, j)];
  EXPECT_FALSE(product.passes(found)) << "a row was another's";
  found = product.all(P::exact_sum);
  const auto worst = std::max_element(found.begin(), found.end(),
                                      [](const T& a, const T& b) { return static_cast<float>(a) < static_cast<float>(b); });
  *worst = static_cast<T>(static_cast<float>(*worst) * 1.1f);
  EXPECT_FALSE(product.passes(found)) << "one element was a tenth too large";
}

TEST(Tolerance, TellsLowerPrecisionAndMissingTermsInFp32) {
  for (const int k : {256, 4096, 16384}) expect_limits_to_tell<float>(k);
}
TEST(Tolerance, TellsLowerPrecisionAndMissingTermsInBf16) {
  for (const int k : {512, 4096}) expect_limits_to_tell<__nv_bfloat16>(k);
}
// A limit of what limits can tell, which docs/method.md names.
TEST(Tolerance, DoesNotTellShortSumsInFp16BehindBf16) {
  for (const int k : {512, 4096}) {
    const Product<__nv_bfloat16> product{96, 64, k};
    EXPECT_TRUE(product.passes_reference(product.all(Product<__nv_bfloat16>::fp16_parts))) << k;
    EXPECT_FALSE((Product<float>{96, 64, k}.passes_reference(Product<float>{96, 64, k}.all(Product<float>::fp16_parts)))) << k;
  }
}
TEST(Tolerance, TellsLowerPrecisionAndMissingTermsInFp16) {
  for (const int k : {256, 4096}) expect_limits_to_tell<__half>(k);
}

}  // namespace
}  // namespace aisp
