// SPDX-License-Identifier: Apache-2.0
// Grouped products in clusters of two whose odd rows of tiles are computed by both blocks, each with a B of its own.
#include <gmock/gmock.h>

#include "gemm/paired.hpp"
#include "gemm_case.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using PairedGroups = HopperTest;
using AlongK = Operand<bf16>;
using RowMajorB = Operand<bf16, Major::mn>;
using Cooperative = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4, .cluster = 2}>;
using RowMajor = Config<AlongK, RowMajorB, InTensorCores, Shape{.tile_n = 128, .stages = 4, .cluster = 2}>;
using Pingpong =
    Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = 64, .stages = 4, .pingpong = true, .cluster = 2}>;
template <class C>
using Rows = RaggedRows<C, RowsStore<>, PairedGroupedGemm>;

// Groups of one, two, three and five rows of tiles of 64, and of one, one, two and three of 128.
const std::vector<int> mostly_odd = {0, 64, 192, 192, 384, 700};

template <class C>
void expect_groups(const std::vector<int>& offsets, std::size_t n, std::size_t k, const GroupedOptions& options = {}) {
  const Rows<C> rows{offsets, n, k, options.pitches};
  for (const int band : {1, 2, 8}) {
    GroupedOptions banded = options;
    banded.band = band;
    const auto results = rows.run(offsets, banded);
    EXPECT_TRUE(right(results, n, rows.expected())) << "n " << n << ", bands of " << band;
    expect_shifts_seen(results, n, rows.expected());
  }
}

TEST_F(PairedGroups, EveryGroupHasItsOwnB) {
  for (const std::vector<int>& offsets : {eight_groups, half_tiles, mostly_odd}) {
    expect_groups<Cooperative>(offsets, 512, 200);
    expect_groups<RowMajor>(offsets, 512, 192);
    expect_groups<Pingpong>(offsets, 256, 136);
  }
}
TEST_F(PairedGroups, OneColumnOfTilesAndAnOddNumberOfThem) {
  for (const std::size_t n : {64, 136, 264, 328}) {
    expect_groups<Cooperative>(mostly_odd, n, 136);
    expect_groups<Pingpong>(mostly_odd, n, 72);
  }
  expect_groups<RowMajor>(mostly_odd, 320, 64);
}
// More tiles than all blocks have at once, so that tiles of both kinds follow each other in one cluster.
TEST_F(PairedGroups, ClustersGoOnFromTilesThatShareToTilesThatDoNot) {
  expect_groups<Cooperative>(half_tiles, 3000, 136);
  for (const int multiprocessors : {1, 2, 7, 1000}) {
    expect_groups<Cooperative>(mostly_odd, 392, 328, {.multiprocessors = multiprocessors});
    expect_groups<RowMajor>(mostly_odd, 384, 320, {.multiprocessors = multiprocessors});
    expect_groups<Pingpong>(mostly_odd, 392, 328, {.multiprocessors = multiprocessors});
  }
}
TEST_F(PairedGroups, OneExpertHasAllOrNone) {
  expect_groups<Cooperative>({0, 0, 300, 300}, 200, 64);
  expect_groups<Pingpong>({0, 5}, 64, 64);
}

// A test must be able to see rows that are taken for another group's.
TEST_F(PairedGroups, AWrongOffsetIsSeen) {
  const Rows<Cooperative> rows{mostly_odd, 200, 136};
  for (const std::size_t group : {1, 2, 4}) {
    std::vector<int> told = mostly_odd;
    ++told[group];
    EXPECT_FALSE(right(rows.run(told), 200, rows.expected())) << group;
  }
}

TEST_F(PairedGroups, TheNumberOfRowsIsReadOnTheGpu) {
  const Rows<Cooperative> rows{{0, 300}, 136, 72};
  for (const int m : {0, 1, 128, 129, 300}) {
    std::vector<float> results = rows.run({0, m});
    for (std::size_t i = static_cast<std::size_t>(m) * 136; i < results.size(); ++i) ASSERT_EQ(results[i], untouched) << m;
    results.resize(static_cast<std::size_t>(m) * 136);
    EXPECT_TRUE(right(results, 136, rows.expected())) << m;
  }
}

TEST_F(PairedGroups, ABandHasARow) {
  const OnGpu<bf16> matrix{std::vector<bf16>(64 * 64)};
  const OnGpu<int> offsets{{0, 64}};
  const OnGpu<std::byte> workspace{std::vector<std::byte>(PairedGroupedGemm<Cooperative>::workspace_bytes(64, 1))};
  EXPECT_THAT(
      [&] {
        PairedGroupedGemm<Cooperative>({.a = matrix.get(), .b = matrix.get(), .c = matrix.get(), .m = 64, .n = 64, .k = 64},
                                       offsets.get(), workspace.get(), {.band = 0});
      },
      testing::ThrowsMessage<std::logic_error>(testing::HasSubstr("a band has one row of tiles at least, not 0")));
}

}  // namespace
}  // namespace aisp::gemm
