// SPDX-License-Identifier: Apache-2.0
// Every store, every kind of operands, and tiles of many widths and heights.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using AlongK = Operand<bf16>;
using AlongMn = Operand<bf16, Major::mn>;
using Stores = HopperTest;

template <class C, class Store>
testing::AssertionResult stored(const Sizes3& sizes, double before = 0) {
  const Case<C> product{sizes};
  const auto results = product.template run<Bands, Identity, Store>();
  return right<typename Store::Element>(results, sizes.n,
                                        [&](std::size_t i, std::size_t j) { return product.product(i, j) + before; });
}

TEST_F(Stores, InEveryTypeAndWidthOfBoxes) {
  using Wide = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
  using Narrow = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = 96, .stages = 4, .consumers = 1}>;
  using Narrower = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = 80, .stages = 4, .consumers = 1}>;
  const Sizes3 tails{150, 208, 136};
  EXPECT_TRUE((stored<Wide, TmaStore<bf16, 2>>(tails)));
  EXPECT_TRUE((stored<Narrow, TmaStore<bf16, 1>>(tails)));
  EXPECT_TRUE((stored<Narrower, TmaStore<bf16, 1>>(tails)));
  EXPECT_TRUE((stored<Wide, TmaStore<float, 2>>(tails)));
  EXPECT_TRUE((stored<Narrower, TmaStore<float, 1>>(tails)));
  EXPECT_TRUE((stored<Wide, RowsStore<float>>(tails)));
}

TEST_F(Stores, AddToWhatCHolds) {
  using Wide = Config<AlongMn, AlongMn, InTensorCores, Shape{.tile_n = 128, .stages = 4, .pingpong = true}>;
  const Sizes3 tails{192, 320, 200};
  EXPECT_TRUE((stored<Wide, TmaStore<float, 2, true>>(tails, untouched)));
  EXPECT_TRUE((stored<Wide, RowsStore<float, true>>(tails, untouched)));
  EXPECT_FALSE((stored<Wide, RowsStore<float>>(tails, untouched)));
}

// Of both operands along either direction: A[k][m] B[k][n] is what the gradient of weights is.
TEST_F(Stores, OperandsAlongEitherDirection) {
  constexpr Shape shape{.tile_n = 128, .stages = 4, .cluster = 2};
  const Sizes3 tails{320, 192, 200};
  EXPECT_TRUE((stored<Config<AlongMn, AlongMn, InTensorCores, shape>, TmaStore<>>(tails)));
  EXPECT_TRUE((stored<Config<AlongMn, AlongK, InTensorCores, shape>, TmaStore<>>(tails)));
  EXPECT_TRUE((stored<Config<AlongK, AlongMn, InTensorCores, shape>, TmaStore<>>(tails)));
}

TEST_F(Stores, OperandsOfEveryType) {
  constexpr Shape shape{.tile_m = 64, .tile_n = 64, .stages = 4, .consumers = 1};
  const Sizes3 tails{100, 72, 272};
  EXPECT_TRUE((stored<Config<Operand<__half>, Operand<__half>, InTensorCores, shape>, RowsStore<bf16>>(tails)));
  EXPECT_TRUE((stored<Config<Operand<e5m2>, Operand<e5m2>, InTensorCores, shape>, RowsStore<bf16>>(tails)));
  EXPECT_TRUE((stored<Config<Operand<e4m3>, Operand<e5m2>, Promoted, shape>, RowsStore<bf16>>(tails)));
  EXPECT_TRUE((stored<Config<Operand<e5m2>, Operand<e4m3>, Promoted, shape>, RowsStore<bf16>>(tails)));
}

template <int tile_n>
testing::AssertionResult of_width() {
  using C = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = tile_n, .stages = 3, .consumers = 1}>;
  return stored<C, RowsStore<bf16>>({70, 264, 72});
}
TEST_F(Stores, TilesOfAnyWidth) {
  EXPECT_TRUE(of_width<8>());
  EXPECT_TRUE(of_width<24>());
  EXPECT_TRUE(of_width<40>());
  EXPECT_TRUE(of_width<104>());
  EXPECT_TRUE(of_width<176>());
  EXPECT_TRUE(of_width<248>());
  EXPECT_TRUE(of_width<256>());
}

TEST_F(Stores, TilesOfAnyHeight) {
  const Sizes3 tails{300, 72, 72};
  EXPECT_TRUE((stored<Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 256, .tile_n = 64}>, RowsStore<bf16>>(tails)));
  EXPECT_TRUE(
      (stored<Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 192, .tile_n = 64, .pingpong = true}>, RowsStore<bf16>>(
          tails)));
  EXPECT_TRUE((
      stored<Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 128, .tile_n = 64, .consumers = 1}>, RowsStore<bf16>>(tails)));
}

// A few tokens as B, weights as A: c[token][feature], with a scale for each feature and each token.
template <class C, class Out>
testing::AssertionResult stored_transposed(const Sizes3& sizes) {
  const Case<C> product{sizes};
  const std::vector<float> of_features = powers_of_two(sizes.m, 4), of_tokens = powers_of_two(sizes.n, 5);
  const OnGpu<float> rows{of_features}, columns{of_tokens};
  const auto results = product.template run<Bands, RowColumnScaled, ColumnsStore<Out>>({rows.get(), columns.get()});
  return right<Out>(results, sizes.m, [&](std::size_t token, std::size_t feature) {
    return product.product(feature, token) * of_features[feature] * of_tokens[token];
  });
}
TEST_F(Stores, Transposed) {
  using Eight = Config<Operand<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 8, .stages = 6}>;
  using Forty = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 40, .pingpong = true}>;
  for (const std::size_t tokens : {1, 7, 8, 21}) {
    EXPECT_TRUE((stored_transposed<Eight, bf16>({330, tokens, 272}))) << tokens;
    EXPECT_TRUE((stored_transposed<Eight, float>({330, tokens, 272}))) << tokens;
    EXPECT_TRUE((stored_transposed<Forty, bf16>({330, tokens, 136}))) << tokens;
  }
}

TEST_F(Stores, WhatCannotBeMultipliedIsRefused) {
  using C = Config<AlongK, AlongMn, InTensorCores, Shape{.tile_n = 128}>;
  EXPECT_THROW((Case<C>{{64, 64, 12}}.run()), std::logic_error);  // rows of A of 24 bytes
  EXPECT_THROW((Case<C>{{64, 72, 64}}.run()), std::logic_error);  // B along N in boxes of 64
  EXPECT_THROW((Case<C>{{64, 68, 64}}.run()), std::logic_error);  // rows of C of 136 bytes
  EXPECT_NO_THROW((Case<C>{{0, 64, 64}}.run()));
}

}  // namespace
}  // namespace aisp::gemm
