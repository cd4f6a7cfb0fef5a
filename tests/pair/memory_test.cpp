// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/memory.hpp"
#include <cuda_bf16.h>

#include <aisp/tolerance.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace aisp::pair {
namespace {

template <class T>
Elements elements(const std::vector<T>& values) {
  return {values.data(), element_type<T>(), sizeof(T), values.size(), -1};
}

TEST(Compare, NormAndLargestElementError) {
  const std::vector<float> reference{3, 4, 0, 0};
  const std::vector<float> x{3, 4, 1, 0};
  const Norms norms = compare(elements(x), elements(reference));
  EXPECT_NEAR(norms.relative_l2(), 0.2, 1e-12);              // 1 / 5
  EXPECT_NEAR(norms.largest_element_error, 1 / 2.5, 1e-12);  // rms of the reference is 2.5
  EXPECT_EQ(norms.mismatches, 1u);
}

TEST(Compare, IntegersAreMeasuredByTheirRootMeanSquareToo) {
  const std::vector<std::uint8_t> reference{3, 4, 0, 0}, x{3, 4, 1, 0};
  EXPECT_NEAR(compare(elements(x), elements(reference)).largest_element_error, 1 / 2.5, 1e-12);
  EXPECT_EQ(compare(elements(x), elements(reference), {.bits = true}).mismatches, 1u);
}

TEST(Compare, EveryGroupByItself) {
  // [2, 3, 2]: groups of two neighbours, three of them in turn; the last turn is cut.
  const Axis groups{2, 3};
  const std::vector<float> reference{3, 4, 100, 100, 0, 5, 3, 4, 100, 100, 0};
  std::vector<float> x = reference;
  x[1] = 3;
  const Norms norms = compare(elements(x), elements(reference), {.groups = groups});
  EXPECT_EQ(norms.groups, 3u);
  EXPECT_EQ(norms.group, 0u);
  EXPECT_NEAR(norms.group_l2, 1 / std::sqrt(50.0), 1e-12);
  EXPECT_NEAR(norms.largest_element_error, 1 / (4 + std::sqrt(50.0 / 4)), 1e-12);
  EXPECT_LT(norms.relative_l2(), 0.01);
  std::size_t sum = 0;
  for (std::size_t g = 0; g < 3; ++g) {
    for (std::size_t k = 0; k < group_size(groups, x.size(), g); ++k) EXPECT_EQ(groups.place(group_element(groups, g, k)), g);
    sum += group_size(groups, x.size(), g);
  }
  EXPECT_EQ(sum, x.size());
}

TEST(Compare, NanAndInfinityNeverPass) {
  const std::vector<float> reference{1, 2};
  const Norms norms = compare(elements(std::vector<float>{1, NAN}), elements(reference));
  EXPECT_TRUE(std::isinf(norms.relative_l2()));
  EXPECT_TRUE(std::isinf(norms.largest_element_error));
  EXPECT_EQ(norms.not_finite, 1u);
  EXPECT_EQ(count_not_finite(elements(std::vector<double>{INFINITY, 0, NAN})), 2u);
}

// Equal stretches are passed over in blocks: what is in them counts all the same.
TEST(Compare, LongOnesElementByElement) {
  std::vector<float> reference(20000);
  for (std::size_t i = 0; i < reference.size(); ++i) reference[i] = static_cast<float>(i % 7) - 3;
  std::vector<float> x = reference;
  x[4095] += 1;
  x[19999] += 2;
  double squares = 0;
  for (const float value : reference) squares += static_cast<double>(value) * static_cast<double>(value);
  for (const Axis& groups : {Axis{}, Axis{2, 5}}) {
    const Norms norms = compare(elements(x), elements(reference), {.groups = groups, .steps = true});
    EXPECT_EQ(norms.difference_squared, 5);
    EXPECT_NEAR(norms.reference_squared, squares, 1e-9 * squares);
    EXPECT_EQ(norms.mismatches, 2u);
    EXPECT_EQ(norms.moved, 2u);
    EXPECT_EQ(norms.not_finite, 0u);
  }
  EXPECT_EQ(compare(elements(x), elements(reference), {.bits = true}).mismatches, 2u);
}

TEST(Compare, WhatIsNotFiniteInBothCounts) {
  std::vector<float> reference(20000, 1.0f);
  reference[9000] = INFINITY;
  EXPECT_EQ(compare(elements(reference), elements(reference)).not_finite, 1u);
  EXPECT_EQ(compare(elements(reference), elements(reference)).relative_l2(), 0);
  reference[12000] = NAN;
  const Norms norms = compare(elements(reference), elements(reference), {.steps = true});
  EXPECT_EQ(norms.not_finite, 2u);
  EXPECT_EQ(norms.mismatches, 0u);
  EXPECT_TRUE(std::isinf(norms.difference_squared));
  EXPECT_TRUE(std::isinf(norms.most_steps));
}

TEST(Compare, AcrossTypesByValue) {
  const std::vector<float> reference{1.0f, 2.5f};
  const std::vector<__nv_bfloat16> x{__float2bfloat16(1.0f), __float2bfloat16(2.5f)};
  EXPECT_EQ(compare(elements(x), elements(reference)).mismatches, 0u);
}

TEST(Compare, IntegersBitByBit) {
  const std::vector<std::uint64_t> reference{(1ull << 60) + 1, 5};
  const std::vector<std::uint64_t> x{1ull << 60, 5};
  EXPECT_EQ(compare(elements(x), elements(reference)).mismatches, 1u);
}

TEST(Unwritten, OnlyWhatKeptBothPoisons) {
  std::vector<std::uint32_t> first{0xFFFFFFFF, 0xFFFFFFFF, 7};
  std::vector<std::uint32_t> second{0x7B7B7B7B, 0xFFFFFFFF, 7};
  EXPECT_EQ(count_unwritten(elements(first), 0xFF, elements(second), 0x7B), 1u);
}

TEST(Digest, SeesEveryByteAndItsPlace) {
  std::vector<unsigned char> data(1001);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i);
  const std::uint64_t before = digest(data.data(), data.size(), -1);
  data[1000] ^= 1;
  EXPECT_NE(digest(data.data(), data.size(), -1), before);
  data[1000] ^= 1;
  for (std::size_t i = 0; i < 8; ++i) std::swap(data[i], data[8 + i]);
  EXPECT_NE(digest(data.data(), data.size(), -1), before);
}

TEST(Digest, WithAKeyTellsNothingOfOtherKeys) {
  const std::vector<std::uint64_t> data{1, 2, 3};
  const auto with = [&](const DigestKey& key) { return digest(data.data(), 24, -1, key); };
  EXPECT_EQ(with({.mask = 5, .factor = 7}), with({.mask = 5, .factor = 7}));
  EXPECT_NE(with({.mask = 5, .factor = 7}), with({.mask = 6, .factor = 7}));
  EXPECT_NE(with({.mask = 5, .factor = 7}), with({.mask = 5, .factor = 9}));
  EXPECT_EQ(with({}), digest(data.data(), 24, -1));
}

TEST(Sort, NumbersAndRecords) {
  std::vector<float> values{3, -1, 2};
  sort_elements(values.data(), ElementType::f32, 4, 3, -1);
  EXPECT_EQ(values, (std::vector<float>{-1, 2, 3}));
  char records[] = "bbbaaaccc";
  sort_elements(records, ElementType::record, 3, 3, -1);
  EXPECT_STREQ(records, "aaabbbccc");
}

TEST(Tolerances, GrowWithTypeAndReduction) {
  EXPECT_EQ(resolve(automatic, ElementType::i32).kind, Tolerance::Kind::exact);
  const double single = resolve(automatic, ElementType::f32).relative_l2;
  EXPECT_GT(single, rounding_error(ElementType::f32));
  EXPECT_NEAR(resolve(reduction_of(999), ElementType::f32).relative_l2 / single, std::sqrt(1000.0 / 2), 0.1);
  EXPECT_EQ(resolve(reduction_of(32 << 20), ElementType::f32).relative_l2,
            resolve(reduction_of(4096), ElementType::f32).relative_l2);
  // Sums of 512 products kept in bf16's neighbour, fp16, are off by 3.7e-3; one rounding to bf16 is 1.6e-3.
  EXPECT_LT(resolve(reduction_of(512), ElementType::bf16).relative_l2, 2.5e-3);
  EXPECT_LT(resolve(reduction_of(512), ElementType::f16).relative_l2, 4.9e-4);
  EXPECT_GT(resolve(automatic, ElementType::bf16).relative_l2, 100 * single);
  EXPECT_EQ(resolve(within(1e-3), ElementType::f32).relative_l2, 1e-3);
}

}  // namespace
}  // namespace aisp::pair
