// SPDX-License-Identifier: Apache-2.0
// Every store, every kind of operands, and tiles of many widths and heights.
#include <cuda_fp16.h>
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using AlongK = Operand<bf16>;
using AlongMn = Operand<bf16, Major::mn>;
using Stores = HopperTest;

// Whatever the operands, the tile and the store are, results that are shifted must be seen.
template <class C, class Store, class Taken = C>
testing::AssertionResult stored(const Sizes3& sizes, double before = 0) {
  using Out = typename Store::Element;
  const Case<C> product{sizes};
  const auto results = product.template run<Bands, Identity, Store, Taken>();
  const auto expected = [&](std::size_t i, std::size_t j) { return product.product(i, j) + before; };
  expect_shifts_seen<Out>(results, sizes.n, expected);
  return right<Out>(results, sizes.n, expected);
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

// Both operands along either direction: A[k][m] B[k][n] is the gradient of weights.
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

// Bytes that the kernel takes for operands along the other direction, or of another type.
TEST_F(Stores, OperandsTakenForOthersAreSeen) {
  constexpr Shape shape{.tile_m = 64, .tile_n = 64, .stages = 4, .consumers = 1};
  using KK = Config<AlongK, AlongK, InTensorCores, shape>;
  using MnK = Config<AlongMn, AlongK, InTensorCores, shape>;
  using KMn = Config<AlongK, AlongMn, InTensorCores, shape>;
  const Sizes3 tails{320, 192, 200};
  EXPECT_FALSE((stored<KK, RowsStore<bf16>, MnK>(tails)));
  EXPECT_FALSE((stored<KK, RowsStore<bf16>, KMn>(tails)));
  EXPECT_FALSE((stored<MnK, RowsStore<bf16>, KMn>(tails)));
  using F16 = Config<Operand<__half>, Operand<__half>, InTensorCores, shape>;
  using E4m3 = Config<Operand<e4m3>, Operand<e4m3>, InTensorCores, shape>;
  using E5m2 = Config<Operand<e5m2>, Operand<e5m2>, InTensorCores, shape>;
  using Mixed = Config<Operand<e4m3>, Operand<e5m2>, Promoted, shape>;
  EXPECT_FALSE((stored<KK, RowsStore<bf16>, F16>({100, 72, 136})));
  EXPECT_FALSE((stored<E4m3, RowsStore<bf16>, E5m2>({100, 72, 272})));
  EXPECT_FALSE((stored<E4m3, RowsStore<bf16>, Mixed>({100, 72, 272})));
}

// Rows of an operand as panels of 128 bytes of K, with zeros behind the last.
template <class Element>
std::vector<Element> panels_of(const std::vector<Element>& rows, std::size_t k) {
  constexpr std::size_t width = Operand<Element>::tile_k;
  const std::size_t extent = rows.size() / k, panels = (k + width - 1) / width;
  std::vector<Element> laid(panels * extent * width, Element{0.0f});
  for (std::size_t i = 0; i < rows.size(); ++i) laid[(i % k / width * extent + i / k) * width + i % k % width] = rows[i];
  return laid;
}
// `laid`: otherwise the rows lie as they are, which the kernel must not take for panels.
template <class C>
testing::AssertionResult stored_from_panels(const Sizes3& sizes, bool laid = true) {
  using Element = typename C::A::Element;
  std::vector<Element> a = integers<Element>(sizes.m * sizes.k, 1), b = integers<Element>(sizes.n * sizes.k, 2);
  std::vector<Element> a_panels = panels_of(a, sizes.k), b_panels = panels_of(b, sizes.k);
  a.resize(a_panels.size(), Element{0.0f});
  const OnGpu<Element> a_gpu{laid ? a_panels : a}, b_gpu{in_panels<typename C::B> ? b_panels : b};
  const OnGpu<bf16> c{std::vector<bf16>(sizes.m * sizes.n, bf16{untouched})};
  const Gemm<C, Bands, Identity, ColumnsStore<bf16>> gemm{
      {.a = a_gpu.get(), .b = b_gpu.get(), .c = c.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k}};
  gemm.run(nullptr);
  check(cudaDeviceSynchronize());
  const Case<C> product{sizes};
  return right(as_floats(c.host()), sizes.m,
               [&](std::size_t token, std::size_t feature) { return product.product(feature, token); });
}
TEST_F(Stores, OperandsInPanels) {
  using Weights = Config<Panels<e4m3>, Operand<e4m3>, Promoted, Shape{.tile_n = 32, .stages = 6}>;
  using Both = Config<Panels<bf16>, Panels<bf16>, InTensorCores, Shape{.tile_n = 64, .cluster = 2}>;
  for (const std::size_t k : {16, 128, 400}) {
    EXPECT_TRUE((stored_from_panels<Weights>({330, 21, k}))) << k;
    EXPECT_TRUE((stored_from_panels<Both>({330, 72, k}))) << k;
  }
  EXPECT_FALSE((stored_from_panels<Weights>({330, 21, 400}, false)));
  EXPECT_FALSE((stored_from_panels<Both>({330, 72, 400}, false)));
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
  const auto expected = [&](std::size_t token, std::size_t feature) {
    return product.product(feature, token) * of_features[feature] * of_tokens[token];
  };
  expect_shifts_seen<Out>(results, sizes.m, expected);
  return right<Out>(results, sizes.m, expected);
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
