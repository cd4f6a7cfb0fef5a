// SPDX-License-Identifier: Apache-2.0
// Which cluster computes what, walked through on the host for shapes drawn at random: no GPU is needed to count. What a kernel
// makes of it is tested on one (slices_gpu_test, grouped_gpu_test).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gemm/paired.cuh"
#include "gemm/schedule.cuh"

namespace aisp::gemm {
namespace {

// The members of a Config that schedules use.
template <int tile_m_, int tile_n_, int cluster_>
struct Shape {
  static constexpr int tile_m = tile_m_, tile_n = tile_n_, tile_k = 64, cluster = cluster_;
};
using Wide = Shape<128, 256, 1>;
using Clustered = Shape<64, 64, 2>;

struct Draw {
  std::mt19937 generator{1};
  int operator()(int least, int most) { return std::uniform_int_distribution<int>{least, most}(generator); }
  Extent extent() { return {(*this)(1, 3000), 8 * (*this)(1, 100), 8 * (*this)(1, 100)}; }
};

using Place = std::pair<int, int>;  // a tile's first row and column

// The work of all clusters together.
struct Walked {
  std::map<Place, std::vector<int>> stages;  // how often each stage of a tile's K is summed
  std::vector<Place> whole;
  std::map<int, Tile> parts;  // by slot
  bool well_formed = true;    // tiles lie in C, parts begin and end with stages, no slot is taken twice, what is called whole is
};

template <class C, class Schedule>
Walked walk(const Schedule& schedule, int k) {
  Walked walked;
  const int steps = detail::tiles_of(k, C::tile_k), clusters = schedule.most_tiles();
  for (int cluster = 0; cluster < clusters; ++cluster) {
    Tile tile;
    for (int index = cluster; schedule.template at<C>(index, tile); index += clusters) {
      std::vector<int>& stages = walked.stages[{tile.m, tile.n}];
      stages.resize(static_cast<std::size_t>(steps));
      const int first = tile.k / C::tile_k, end = detail::tiles_of(tile.k_end, C::tile_k);
      walked.well_formed &= tile.m < tile.m_end && tile.n < schedule.extent.n;
      walked.well_formed &= tile.k % C::tile_k == 0 && (tile.k_end % C::tile_k == 0 || tile.k_end == k) && first < end;
      for (int stage = first; stage < end; ++stage) ++stages[static_cast<std::size_t>(stage)];
      if (!Schedule::partial || tile.slice < 0) {
        walked.whole.emplace_back(tile.m, tile.n);
        walked.well_formed &= first == 0 && end == steps;
      } else {
        walked.well_formed &= end - first < steps && walked.parts.emplace(tile.slice, tile).second;
      }
    }
  }
  return walked;
}

testing::AssertionResult all_once(const Walked& walked, std::size_t tiles) {
  if (!walked.well_formed)
    return testing::AssertionFailure() << "a tile outside of C, or a part that is none or lies where another one does";
  if (walked.stages.size() != tiles) return testing::AssertionFailure() << walked.stages.size() << " of " << tiles << " tiles";
  for (const auto& [place, stages] : walked.stages)
    if (std::ranges::any_of(stages, [](int times) { return times != 1; }))
      return testing::AssertionFailure() << "tile at " << place.first << ", " << place.second;
  return testing::AssertionSuccess();
}

// As sum_parts_kernel goes through the ranges: every part must be added once, to its own tile, all of whose stages come together.
template <class C, class Ranges>
testing::AssertionResult parts_add_up(const Ranges& ranges, Walked walked) {
  const auto& cut = ranges.cut();
  for (int second = 1; second < ranges.clusters; ++second) {
    const int number = cut.begin(second) / ranges.steps, begin = number * ranges.steps, end = begin + ranges.steps;
    if (cut.begin(second) == begin || cut.begin(second - 1) > begin) continue;
    const Tile tile = ranges.template whole_tile<C>(number);
    int stages = 0;
    const auto add = [&](int slot) {
      const auto part = walked.parts.find(slot);
      if (part == walked.parts.end() || part->second.m != tile.m || part->second.n != tile.n) return false;
      stages += detail::tiles_of(part->second.k_end - part->second.k, C::tile_k);
      walked.parts.erase(part);
      return true;
    };
    bool right = add(KRanges::first_slot(second - 1));
    for (int range = second; range < ranges.clusters && cut.begin(range) < end; ++range) right &= add(KRanges::later_slot(range));
    if (!right || stages != ranges.steps) return testing::AssertionFailure() << "the tile at " << tile.m << ", " << tile.n;
    walked.whole.emplace_back(tile.m, tile.n);
  }
  if (!walked.parts.empty()) return testing::AssertionFailure() << walked.parts.size() << " parts are left";
  std::ranges::sort(walked.whole);
  if (walked.whole.size() != walked.stages.size() || std::ranges::adjacent_find(walked.whole) != walked.whole.end())
    return testing::AssertionFailure() << "a tile is stored twice, or never";
  return testing::AssertionSuccess();
}

template <class C>
std::size_t tiles_in(const Extent& extent) {
  return static_cast<std::size_t>(detail::tiles_of(extent.m, C::tile_m * C::cluster) * detail::tiles_of(extent.n, C::tile_n));
}

// Groups of random lengths, some of them empty, and the list that list_row_tiles_kernel makes of them.
struct Groups {
  Groups(Draw& draw, int tile_rows) : band{draw(1, 9)} {
    const int groups = draw(1, 8);
    for (int group = 0; group < groups; ++group) offsets.push_back(offsets.back() + (draw(0, 2) > 0 ? draw(0, 700) : 0));
    for (std::size_t group = 0; group + 1 < offsets.size(); ++group) {
      const int own = detail::tiles_of(offsets[group + 1] - offsets[group], tile_rows), bands = detail::tiles_of(own, band);
      for (int number = 0; number < bands; ++number) {
        const int first = static_cast<int>(tiles.size()), height = own / bands + (number < own % bands ? 1 : 0);
        for (int i = 0; i < height; ++i) {
          const bool begins = tiles.empty() || tiles.back().group != static_cast<int>(group);
          const int m = begins ? offsets[group] : tiles.back().m + tile_rows;
          tiles.push_back({m, offsets[group + 1], static_cast<int>(group), first, height});
        }
      }
    }
    count = static_cast<int>(tiles.size());
  }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  GroupedRows schedule() const {
    return {.tiles = tiles.data(), .count = &count, .groups = static_cast<int>(offsets.size()) - 1};
  }

  int band;
  std::vector<int> offsets{0};
  std::vector<RowTile> tiles;
  int count = 0;
};

constexpr int shapes = 2000, most_clusters = 20;

TEST(GemmSchedule, BandsHaveEveryTileOnce) {
  Draw draw;
  for (int i = 0; i < shapes; ++i) {
    const Extent extent = draw.extent();
    Bands bands{.band = draw(1, 5)};
    bands.fit<Wide>(extent);
    ASSERT_TRUE(all_once(walk<Wide>(bands, extent.k), tiles_in<Wide>(extent))) << extent.m << " x " << extent.n;
  }
}

TEST(GemmSchedule, RangesOfEqualLengthHaveEveryStageOnce) {
  Draw draw;
  const auto expect = [&]<class C>() {
    const Extent extent = draw.extent();
    KRanges ranges{.clusters = draw(1, most_clusters)};
    ranges.template fit<C>(extent);
    const Walked walked = walk<C>(ranges, extent.k);
    ASSERT_TRUE(all_once(walked, tiles_in<C>(extent))) << extent.m << " x " << extent.n << " x " << extent.k;
    ASSERT_TRUE((parts_add_up<C>(ranges, walked))) << extent.m << " x " << extent.n << " x " << extent.k;
  };
  for (int i = 0; i < shapes; ++i) {
    expect.template operator()<Wide>();
    expect.template operator()<Clustered>();
  }
}

TEST(GemmSchedule, TheLastRoundInRangesHasEveryStageOnce) {
  Draw draw;
  int cut = 0, kept = 0;
  const auto expect = [&]<class C>() {
    const Extent extent = draw.extent();
    LastRoundInRanges<Bands> ranges{.tiles = {.band = draw(1, 5)}, .clusters = draw(1, most_clusters)};
    ranges.template fit<C>(extent);
    const Walked walked = walk<C>(ranges, extent.k);
    ASSERT_TRUE(all_once(walked, tiles_in<C>(extent))) << extent.m << " x " << extent.n << " x " << extent.k;
    ASSERT_TRUE((parts_add_up<C>(ranges, walked))) << extent.m << " x " << extent.n << " x " << extent.k;
    ++(walked.parts.empty() ? kept : cut);
  };
  for (int i = 0; i < shapes; ++i) {
    expect.template operator()<Wide>();
    expect.template operator()<Clustered>();
  }
  EXPECT_GT(cut, shapes / 10);
  EXPECT_GT(kept, shapes / 10);
}

TEST(GemmSchedule, GroupsHaveEveryTileOnceWithTheirOwnB) {
  Draw draw;
  for (int i = 0; i < shapes; ++i) {
    const Groups groups{draw, Wide::tile_m};
    const Extent extent{groups.offsets.back(), 8 * draw(1, 100), 8 * draw(1, 100)};
    GroupedRows whole = groups.schedule();
    whole.fit<Wide>(extent);
    ASSERT_LE(groups.count, whole.most_rows);
    const auto tiles = static_cast<std::size_t>(groups.count * whole.columns);
    ASSERT_TRUE(all_once(walk<Wide>(whole, extent.k), tiles));
    Tile tile;
    for (int index = 0; whole.at<Wide>(index, tile); ++index) {
      const auto group = static_cast<std::size_t>(tile.group);
      ASSERT_TRUE(groups.offsets[group] <= tile.m && tile.m < groups.offsets[group + 1]);
      ASSERT_EQ(tile.m_end, groups.offsets[group + 1]);
    }
    LastRoundInRanges<GroupedRows> ranges{.tiles = groups.schedule(), .clusters = draw(1, most_clusters)};
    ranges.fit<Wide>(extent);
    const Walked walked = walk<Wide>(ranges, extent.k);
    ASSERT_TRUE(all_once(walked, tiles));
    if (tiles > 0) ASSERT_TRUE((parts_add_up<Wide>(ranges, walked)));
  }
}

// Both blocks of every cluster have a tile of their own, and share its B unless the cluster has an odd row.
TEST(GemmSchedule, PairsOfRowsLeaveNoBlockWithoutATile) {
  Draw draw;
  int alone = 0;
  for (int i = 0; i < shapes; ++i) {
    const Groups groups{draw, Clustered::tile_m};
    const int columns = draw(1, 9), tiles = groups.count * columns;
    PairedRows pairs{.tiles = groups.tiles.data(), .count = &groups.count, .groups = static_cast<int>(groups.offsets.size()) - 1};
    pairs.fit<Clustered>({groups.offsets.back(), columns * Clustered::tile_n - 8 * draw(0, 7), 64});
    ASSERT_LE(groups.count, pairs.most_rows);
    std::map<Place, int> seen;
    Tile upper, lower;
    int outside = 0;
    for (int index = 0; pairs.at<Clustered>(index, 0, upper); ++index) {
      ASSERT_TRUE(pairs.at<Clustered>(index, 1, lower));
      for (const Tile& tile : {upper, lower}) {
        const auto group = static_cast<std::size_t>(tile.group);
        ASSERT_TRUE(groups.offsets[group] <= tile.m && tile.m < tile.m_end && tile.m_end == groups.offsets[group + 1]);
        ASSERT_EQ((tile.m - groups.offsets[group]) % Clustered::tile_m, 0);
        if (tile.n < pairs.extent.n) ++seen[{tile.m, tile.n}];
        else ++outside;
      }
      const bool is_odd = upper.slice == PairedRows::alone;
      ASSERT_EQ(upper.slice, lower.slice);
      ASSERT_EQ(upper.group, lower.group);
      ASSERT_EQ(lower.m - upper.m, is_odd ? 0 : Clustered::tile_m);
      ASSERT_EQ(lower.n - upper.n, is_odd ? Clustered::tile_n : 0);
      alone += is_odd ? 1 : 0;
    }
    ASSERT_EQ(seen.size(), static_cast<std::size_t>(tiles));
    ASSERT_TRUE(std::ranges::all_of(seen, [](const auto& place) { return place.second == 1; }));
    ASSERT_EQ(outside, columns % 2 == 0 ? 0 : groups.count);
  }
  EXPECT_GT(alone, shapes);
}

// The tiles that are under way at once share what they read.
TEST(GemmSchedule, AGroupsBandIsWalkedToItsEndBeforeTheNext) {
  Draw draw;
  for (int i = 0; i < shapes; ++i) {
    const Groups groups{draw, Wide::tile_m};
    GroupedRows whole = groups.schedule();
    whole.fit<Wide>({groups.offsets.back(), 8 * draw(1, 100), 64});
    Tile tile, before{};
    for (int index = 0; whole.at<Wide>(index, tile); before = tile, ++index)
      if (index > 0 && tile.n < before.n) ASSERT_TRUE(tile.n == 0 && before.n == (whole.columns - 1) * Wide::tile_n);
      else if (index > 0 && tile.group != before.group) ASSERT_EQ(whole.columns, 1);
  }
}

}  // namespace
}  // namespace aisp::gemm
