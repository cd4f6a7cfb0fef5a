// SPDX-License-Identifier: Apache-2.0
// K in parts whose sums are added in a fixed order: slices of all tiles, and ranges of equal length for all clusters.
#include "gemm_case.hpp"

namespace aisp::gemm {
namespace {

using GemmSlices = HopperTest;
using Fp8 = Operand<e4m3>;
using Wide = Config<Operand<bf16>, Operand<bf16>, InTensorCores, Shape{.tile_n = 64, .pingpong = true}>;
using Narrow = Config<Fp8, Fp8, Promoted, Shape{.tile_n = 8, .stages = 6}>;

// `lost`: slices at the end that are not added, a planted fault.
template <class C, class Store>
testing::AssertionResult summed(const Sizes3& sizes, int slices, int expected_slices, int lost = 0) {
  constexpr bool transposed = Store::any_width;
  const std::vector<typename C::A::Element> a_host = integers<typename C::A::Element>(sizes.m * sizes.k, 1);
  const std::vector<typename C::B::Element> b_host = integers<typename C::B::Element>(sizes.n * sizes.k, 2);
  const OnGpu<typename C::A::Element> a{a_host};
  const OnGpu<typename C::B::Element> b{b_host};
  const std::size_t count = sizes.m * sizes.n;
  const OnGpu<float> workspace{std::vector<float>(count * static_cast<std::size_t>(slices), untouched)};
  const OnGpu<bf16> c{std::vector<bf16>(count, bf16{untouched})};
  const Gemm<C, KSlices, Identity, SlicesStore> parts{
      {.a = a.get(), .b = b.get(), .c = workspace.get(), .m = sizes.m, .n = sizes.n, .k = sizes.k}, {.slices = slices}};
  EXPECT_EQ(parts.schedule().slices, expected_slices);
  parts.run(nullptr);
  KSlices added = parts.schedule();
  added.slices -= lost;
  sum_slices(nullptr, workspace.get(), added, Scaled{0.5f}, Store{c.get()});
  check(cudaDeviceSynchronize());
  const Case<C> product{sizes};
  return right(as_floats(c.host()), transposed ? sizes.m : sizes.n, [&](std::size_t row, std::size_t column) {
    return 0.5 * (transposed ? product.product(column, row) : product.product(row, column));
  });
}

TEST_F(GemmSlices, AddUp) {
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 400}, 3, 3)));
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 64}, 8, 1))) << "no slice is empty";
  EXPECT_TRUE((summed<Wide, RowsStore<bf16>>({130, 72, 328}, 4, 3)));
}

TEST_F(GemmSlices, OfFewColumnsAndTransposed) {
  for (const std::size_t tokens : {1, 9}) EXPECT_TRUE((summed<Narrow, ColumnsStore<bf16>>({200, tokens, 1040}, 4, 3))) << tokens;
}

// More ranges than tiles, fewer, and one for each stage; ranges whose ends are a tile's; a kernel that begins early. `lost`: of
// the beginning of K in what is expected, a planted fault.
template <class C, class Store, class Ranges = KRanges>
testing::AssertionResult in_ranges(const Sizes3& sizes, std::size_t lost = 0) {
  constexpr bool transposed = Store::any_width;
  const Case<C> product{sizes};
  const auto results = product.template run_in_ranges<Ranges, Scaled, Store>({0.5f});
  return right(results, transposed ? sizes.m : sizes.n, [&](std::size_t row, std::size_t column) {
    return 0.5 * product.product(transposed ? column : row, transposed ? row : column, 0, lost, sizes.k);
  });
}

TEST_F(GemmSlices, InRangesOfEqualLength) {
  EXPECT_TRUE((in_ranges<Wide, RowsStore<bf16>>({130, 72, 400})));
  EXPECT_TRUE((in_ranges<Wide, RowsStore<bf16>>({2000, 1000, 136})));
  EXPECT_TRUE((in_ranges<Wide, RowsStore<bf16>>({130, 72, 64})));
  EXPECT_TRUE((in_ranges<Narrow, ColumnsStore<bf16>>({200, 9, 1040})));
  EXPECT_TRUE((in_ranges<Narrow, ColumnsStore<bf16>>({20000, 5, 272})));
}

struct Clustered : Config<Fp8, Fp8, Promoted, Shape{.tile_n = 32, .stages = 6, .cluster = 2}> {};
struct Early : Clustered {
  static constexpr bool begins_early = true;
};

TEST_F(GemmSlices, InRangesOfClusters) {
  EXPECT_TRUE((in_ranges<Clustered, ColumnsStore<bf16>>({5000, 33, 1040})));
  EXPECT_TRUE((in_ranges<Early, ColumnsStore<bf16>>({5000, 33, 1040})));
  EXPECT_TRUE((in_ranges<Early, ColumnsStore<bf16>>({200, 9, 144})));
}

// In front of them whole tiles. Of 132 multiprocessors: a few tiles alone; a round and 12, a round and a quarter, one tile more
// (which are not cut), two rounds, three rounds and 4.
TEST_F(GemmSlices, TheLastRoundInRanges) {
  using LastRound = LastRoundInRanges<Bands>;
  EXPECT_TRUE((in_ranges<Wide, RowsStore<bf16>, LastRound>({130, 72, 400})));
  for (const std::size_t rows_of_tiles : {144, 165, 166, 264, 400})
    EXPECT_TRUE((in_ranges<Wide, RowsStore<bf16>, LastRound>({rows_of_tiles * 128 - 5, 64, 200}))) << rows_of_tiles;
  EXPECT_TRUE((in_ranges<Clustered, ColumnsStore<bf16>, LastRound>({80 * 256, 33, 1040})));
}

TEST_F(GemmSlices, LostPartsAreSeen) {
  EXPECT_FALSE((summed<Wide, RowsStore<bf16>>({130, 72, 400}, 3, 3, 1)));
  EXPECT_FALSE((summed<Narrow, ColumnsStore<bf16>>({200, 9, 1040}, 4, 3, 1)));
  EXPECT_FALSE((in_ranges<Wide, RowsStore<bf16>>({130, 72, 400}, Wide::tile_k)));
  EXPECT_FALSE((in_ranges<Narrow, ColumnsStore<bf16>>({200, 9, 1040}, Narrow::tile_k)));
  EXPECT_FALSE((in_ranges<Early, ColumnsStore<bf16>>({200, 9, 144}, Early::tile_k)));
  EXPECT_FALSE((in_ranges<Wide, RowsStore<bf16>, LastRoundInRanges<Bands>>({144 * 128, 64, 328}, Wide::tile_k)));
}

}  // namespace
}  // namespace aisp::gemm
