// SPDX-License-Identifier: Apache-2.0
// Matrices that are parts of wider ones: what lies beside them is NaN and must not be read, or is another's and must stay.
#include "gemm/on_multiprocessors.cuh"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Pitched = HopperTest;
using AlongK = Operand<bf16>;
using AlongN = Operand<bf16, Major::mn>;

// One product of m x n x k, `Wrong` columns of A in front of it for a fault that the test must see.
template <class C, class Schedule, class Store>
testing::AssertionResult pitched(const Schedule& schedule, std::size_t moved = 0) {
  constexpr std::size_t m = 192, n = 256, k = 136;
  constexpr bool a_along_k = C::A::major == Major::k, b_along_k = C::B::major == Major::k;
  constexpr Pitches pitches{.a = 264, .b = 320, .c = 328};
  const Case<C> product{{m, n, k}};
  const auto a_host = embedded(integers<bf16>(m * k, 1), a_along_k ? k : m, pitches.a);
  const auto b_host = embedded(integers<bf16>(n * k, 2), b_along_k ? k : n, pitches.b);
  const OnGpu<bf16> a{a_host}, b{b_host}, c{std::vector<bf16>(m * pitches.c, bf16{untouched})};
  using Engine = PitchedGemm<C, Schedule, Identity, Store>;
  const Engine engine{{.a = a.get() + moved, .b = b.get(), .c = c.get(), .m = m, .n = n, .k = k}, pitches, schedule};
  engine.run(nullptr);
  check(cudaDeviceSynchronize());
  const std::vector<float> all = as_floats(c.host());
  std::vector<float> results;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i % pitches.c < n) results.push_back(all[i]);
    else if (all[i] != untouched) return testing::AssertionFailure() << "element " << i << " is not C's";
  return right(results, n, [&](std::size_t i, std::size_t j) { return product.product(i, j); });
}

template <class A, class B>
using Plain = Config<A, B, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
template <class A, class B>
using InPairs = Config<A, B, InTensorCores, Shape{.tile_n = 128, .stages = 4, .pingpong = true, .cluster = 2}>;

TEST_F(Pitched, EveryOrderAndBothStores) {
  EXPECT_TRUE((pitched<Plain<AlongK, AlongK>, Bands, TmaStore<>>({})));
  EXPECT_TRUE((pitched<Plain<AlongN, AlongN>, Bands, TmaStore<>>({})));
  EXPECT_TRUE((pitched<InPairs<AlongK, AlongN>, Bands, PitchedRowsStore>({})));
  EXPECT_TRUE((pitched<InPairs<AlongN, AlongK>, Bands, PitchedRowsStore>({})));
  EXPECT_FALSE((pitched<Plain<AlongK, AlongK>, Bands, TmaStore<>>({}, 8))) << "eight columns too far";
}

TEST_F(Pitched, OnSomeMultiprocessors) {
  using Some = OnMultiprocessors<Bands>;
  for (const int multiprocessors : {0, 1, 2, 7, 1000}) {
    EXPECT_TRUE((pitched<Plain<AlongK, AlongK>, Some, TmaStore<>>(Some{{.band = 8}, multiprocessors})));
    EXPECT_TRUE((pitched<InPairs<AlongK, AlongN>, Some, TmaStore<>>(Some{{.band = 8}, multiprocessors})));
  }
}

// Ranges, too: as many as there are multiprocessors for them.
TEST_F(Pitched, RangesOnSomeMultiprocessors) {
  using C = Plain<AlongK, AlongK>;
  using Some = OnMultiprocessors<KRanges>;
  using LastRound = OnMultiprocessors<LastRoundInRanges<Bands>>;
  const Case<C> product{{300, 520, 328}};
  const auto expected = [&](std::size_t i, std::size_t j) { return product.product(i, j); };
  for (const int multiprocessors : {1, 3, 7}) {
    EXPECT_TRUE(right(product.run_in_ranges<Some, Identity, RowsStore<>>({}, Some{{}, multiprocessors}), 520, expected));
    EXPECT_TRUE(
        right(product.run_in_ranges<LastRound, Identity, RowsStore<>>({}, LastRound{{}, multiprocessors}), 520, expected));
  }
}

TEST_F(Pitched, GroupsIntoASlice) {
  const RaggedRows<Plain<AlongK, AlongK>, PitchedRowsStore> rows{eight_groups, 264, 136, {.a = 200, .b = 272, .c = 320}};
  const auto results = rows.run(eight_groups);
  EXPECT_TRUE(right(results, 264, rows.expected()));
  expect_shifts_seen(results, 264, rows.expected());
}

}  // namespace
}  // namespace aisp::gemm
