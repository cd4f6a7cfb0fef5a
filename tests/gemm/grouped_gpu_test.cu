// SPDX-License-Identifier: Apache-2.0
// Rows in ragged groups, each with a B of its own, of which only the GPU knows how long they are.
#include "gemm_case.hpp"
#include "ragged_rows.hpp"

namespace aisp::gemm {
namespace {

using Groups = HopperTest;

struct DeviceList {
  DeviceList(const std::vector<int>& offsets_of, int tile_rows, int band, int most)
      : groups{static_cast<int>(offsets_of.size()) - 1},
        offsets{offsets_of},
        tiles{std::vector<RowTile>(static_cast<std::size_t>(most) + 1, RowTile{-1, -1, -1, -1, -1})},
        count{{-1}} {
    launch_kernel(nullptr, list_row_tiles_kernel<int>, {.blocks = 1, .threads = 32}, offsets.get(), groups, tile_rows, band,
                  tiles.get(), count.get());
    check(cudaDeviceSynchronize());
  }
  int groups;
  OnGpu<int> offsets;
  OnGpu<RowTile> tiles;
  OnGpu<int> count;
};

int group_of(std::size_t row, const std::vector<int>& offsets) {
  int group = 0;
  while (static_cast<int>(row) >= offsets[static_cast<std::size_t>(group) + 1]) ++group;
  return group;
}

template <class C>
DeviceList list_for(const std::vector<int>& offsets, int band) {
  return {offsets, C::tile_m * C::cluster, band,
          GroupedRows::most_row_tiles<C>(offsets.back(), static_cast<int>(offsets.size()) - 1)};
}

// Whether rows are multiplied by the B of the groups that `offsets` says, when the GPU is told the groups of `told`.
template <class C>
testing::AssertionResult grouped(const std::vector<int>& told, const std::vector<int>& offsets, std::size_t n, std::size_t k,
                                 int band) {
  const DeviceList list = list_for<C>(told, band);
  const Case<C> product{{static_cast<std::size_t>(offsets.back()), n, k, offsets.size() - 1}};
  const GroupedRows schedule{.tiles = list.tiles.get(), .count = list.count.get(), .groups = list.groups};
  const auto results = product.template run<GroupedRows, Identity, RowsStore<bf16>>({}, schedule);
  const auto expected = [&](std::size_t i, std::size_t j) {
    return product.product(i, j, static_cast<std::size_t>(group_of(i, offsets)));
  };
  expect_shifts_seen(results, n, expected);
  return right(results, n, expected);
}
template <class C>
void expect_groups(const std::vector<int>& offsets, std::size_t n, std::size_t k) {
  for (const int band : {1, 4}) EXPECT_TRUE(grouped<C>(offsets, offsets, n, k, band)) << band;
}

using AlongK = Operand<bf16>;
using RowMajorB = Operand<bf16, Major::mn>;
using Fp8 = Operand<e4m3>;
using Cooperative = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4}>;
using CooperativeInPairs = Config<AlongK, AlongK, InTensorCores, Shape{.tile_n = 128, .stages = 4, .cluster = 2}>;
using Pingpong = Config<AlongK, RowMajorB, InTensorCores, Shape{.tile_m = 64, .tile_n = 128, .pingpong = true, .cluster = 2}>;
using Scales = Config<Fp8, Fp8, BlockScaled, Shape{.tile_n = 128, .stages = 4, .pingpong = true}>;

TEST_F(Groups, ListHoldsEveryRowOnceInBandsOfOneGroup) {
  using Small = Config<AlongK, AlongK, InTensorCores, Shape{.tile_m = 64, .tile_n = 128, .stages = 4, .consumers = 1}>;
  std::vector<int> many = {0};  // more groups than a warp has lanes
  for (int group = 0; group < 70; ++group) many.push_back(many.back() + group * 37 % 101);
  for (const std::vector<int>& offsets : {eight_groups, many, std::vector<int>{0, 0}}) {
    const int most = GroupedRows::most_row_tiles<Small>(offsets.back(), static_cast<int>(offsets.size()) - 1);
    const DeviceList list{offsets, 64, 4, most};
    const std::vector<RowTile> tiles = list.tiles.host();
    const int count = list.count.host()[0];
    ASSERT_LE(count, most);
    int row = 0;
    for (int i = 0; i < count; ++i) {
      const RowTile& tile = tiles[static_cast<std::size_t>(i)];
      EXPECT_EQ(tile.m, row);
      EXPECT_EQ(tile.group, group_of(static_cast<std::size_t>(tile.m), offsets));
      EXPECT_EQ(tile.m_end, offsets[static_cast<std::size_t>(tile.group) + 1]);
      row = std::min(tile.m + 64, tile.m_end);
      EXPECT_TRUE(tile.band <= i && i < tile.band + tile.band_rows) << i;
      const int of_group = (tile.m_end - offsets[static_cast<std::size_t>(tile.group)] + 63) / 64, bands = (of_group + 3) / 4;
      EXPECT_TRUE(tile.band_rows == of_group / bands || tile.band_rows == (of_group + bands - 1) / bands) << i;
      for (int in_band = 0; in_band < tile.band_rows; ++in_band) {
        const RowTile& other = tiles[static_cast<std::size_t>(tile.band + in_band)];
        EXPECT_TRUE(other.group == tile.group && other.band == tile.band && other.band_rows == tile.band_rows) << i;
      }
    }
    EXPECT_EQ(row, offsets.back());
    EXPECT_EQ(tiles[static_cast<std::size_t>(count)].m, -1);
  }
}

TEST_F(Groups, EightExperts) {
  expect_groups<Cooperative>(eight_groups, 200, 136);
  expect_groups<Pingpong>(eight_groups, 192, 128);
}
TEST_F(Groups, TilesThatAreHalfEmpty) {
  expect_groups<Cooperative>(half_tiles, 3000, 136);         // 384 tiles
  expect_groups<CooperativeInPairs>(half_tiles, 1800, 328);  // 135 of two blocks
}
// Tiles of groups begin anywhere, and where ranges begin is known on the GPU alone.
template <class C>
testing::AssertionResult in_ranges(const std::vector<int>& told, const std::vector<int>& offsets, std::size_t n, std::size_t k) {
  const DeviceList list = list_for<C>(told, 4);
  const Case<C> product{{static_cast<std::size_t>(offsets.back()), n, k, offsets.size() - 1}};
  const auto results = product.template run_in_ranges<LastRoundInRanges<GroupedRows>, Scaled, RowsStore<bf16>>(
      {0.5f}, {.tiles = {.tiles = list.tiles.get(), .count = list.count.get(), .groups = list.groups}});
  return right(results, n, [&](std::size_t i, std::size_t j) {
    return 0.5 * product.product(i, j, static_cast<std::size_t>(group_of(i, offsets)));
  });
}
TEST_F(Groups, TheLastRoundInRanges) {
  const std::vector<int> few = {0, 0, 1, 3};
  for (const std::vector<int>& offsets : {eight_groups, few}) {
    EXPECT_TRUE((in_ranges<Cooperative>(offsets, offsets, 200, 1032)));
    EXPECT_TRUE((in_ranges<Pingpong>(offsets, offsets, 192, 1024)));
  }
  EXPECT_TRUE((in_ranges<Cooperative>(half_tiles, half_tiles, 1200, 328)));         // 160 tiles
  EXPECT_TRUE((in_ranges<Cooperative>(half_tiles, half_tiles, 3000, 136)));         // 384, of which none is cut
  EXPECT_TRUE((in_ranges<CooperativeInPairs>(half_tiles, half_tiles, 1104, 328)));  // 81 of two blocks
  EXPECT_TRUE((in_ranges<Pingpong>(half_tiles, half_tiles, 640, 320)));             // 80
  EXPECT_FALSE((in_ranges<Cooperative>({0, 699, 699, 701, 1800}, half_tiles, 1200, 328))) << "a row of another group";
}

TEST_F(Groups, AWrongGroupIsSeen) {
  const std::vector<int> one_row_late = {0, 0, 2, 129, 257, 257, 640, 767, 767},
                         one_row_early = {0, 0, 1, 129, 257, 257, 639, 767, 767},
                         in_the_empty_one = {0, 0, 1, 129, 129, 257, 640, 767, 767};
  for (const std::vector<int>& told : {one_row_late, one_row_early, in_the_empty_one}) {
    EXPECT_FALSE(grouped<Cooperative>(told, eight_groups, 200, 136, 1));
    EXPECT_FALSE(grouped<Pingpong>(told, eight_groups, 192, 128, 1));
  }
}
TEST_F(Groups, OneExpertHasAllOrNone) {
  expect_groups<Cooperative>({0, 0, 300, 300}, 72, 64);
  expect_groups<Pingpong>({0, 5}, 64, 64);
}

// Rows of groups begin anywhere, so scales are fetched from a multiple of four rows on.
TEST_F(Groups, BlockScaled) {
  const std::size_t n = 200, k = 272, groups = eight_groups.size() - 1, m = static_cast<std::size_t>(eight_groups.back());
  const std::size_t k_blocks = 3, n_blocks = 2, stride = (m + 3) / 4 * 4;
  const DeviceList list = list_for<Scales>(eight_groups, 8);
  const Case<Scales> product{{m, n, k, groups}};
  const std::vector<float> a_scales = powers_of_two(k_blocks * stride, 4),
                           b_scales = powers_of_two(groups * n_blocks * k_blocks, 5);
  const OnGpu<float> a{a_scales}, b{b_scales};
  const GroupedRows schedule{.tiles = list.tiles.get(), .count = list.count.get(), .groups = list.groups};
  const auto results = product.run<GroupedRows, Identity, RowsStore<bf16>>({}, schedule, a.get(), b.get(), stride);
  // With the scales of another row and of another group than the right ones.
  const auto scaled = [&](std::size_t i, std::size_t j, std::size_t scale_row, std::size_t scale_group) {
    const auto group = static_cast<std::size_t>(group_of(i, eight_groups));
    double sum = 0;
    for (std::size_t block = 0; block < k_blocks; ++block)
      sum += product.product(i, j, group, block * 128, std::min(k, block * 128 + 128)) * a_scales[block * stride + scale_row] *
             b_scales[(scale_group * n_blocks + j / 128) * k_blocks + block];
    return sum;
  };
  EXPECT_TRUE(right(results, n, [&](std::size_t i, std::size_t j) {
    return scaled(i, j, i, static_cast<std::size_t>(group_of(i, eight_groups)));
  }));
  EXPECT_FALSE(right(results, n, [&](std::size_t i, std::size_t j) {
    return scaled(i, j, i & ~std::size_t{3}, static_cast<std::size_t>(group_of(i, eight_groups)));
  })) << "scales of the row where the box begins";
  EXPECT_FALSE(right(results, n, [&](std::size_t i, std::size_t j) {
    return scaled(i, j, i, static_cast<std::size_t>(group_of(i, eight_groups) + 1) % groups);
  })) << "scales of the next group";
}

}  // namespace
}  // namespace aisp::gemm
