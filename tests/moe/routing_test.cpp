// SPDX-License-Identifier: Apache-2.0
// The experts' batches for each kind of routing.
#include "moe/routing.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

namespace aisp::moe {
namespace {

using testing::ElementsAre, testing::ElementsAreArray;

std::vector<int> chosen(std::size_t tokens, const Choices& choices, std::uint64_t seed = 7) {
  std::vector<int> experts(tokens * choices.top_k);
  choose_experts(experts, choices, seed);
  return experts;
}

std::vector<int> rows_of_experts(const std::vector<int>& experts_of, std::size_t experts) {
  std::vector<int> rows(experts, 0);
  for (const int expert : experts_of) ++rows[static_cast<std::size_t>(expert)];
  return rows;
}

TEST(Routing, ATokenChoosesDifferentExpertsThatExist) {
  for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::planted, Routing::same_experts})
    for (const std::size_t top_k : {std::size_t{1}, std::size_t{8}}) {
      const std::vector<int> experts = chosen(600, {.experts = 16, .top_k = top_k, .routing = routing});
      for (std::size_t token = 0; token < 600; ++token) {
        const std::set<int> of_token(experts.begin() + static_cast<std::ptrdiff_t>(token * top_k),
                                     experts.begin() + static_cast<std::ptrdiff_t>((token + 1) * top_k));
        EXPECT_EQ(of_token.size(), top_k);
        EXPECT_GE(*of_token.begin(), 0);
        EXPECT_LT(*of_token.rbegin(), 16);
      }
    }
}

TEST(Routing, UniformRowsSpreadAsDrawnOnes) {
  const std::vector<int> rows = rows_of_experts(chosen(8192, {.experts = 128, .top_k = 8}), 128);
  EXPECT_NEAR(*std::ranges::max_element(rows), 512, 5 * 23);
  EXPECT_NEAR(*std::ranges::min_element(rows), 512, 5 * 23);
  EXPECT_GT(*std::ranges::max_element(rows), 512 + 23);  // no expert count is exact
}

TEST(Routing, TheFullestExpertHasTheRowsThatWereAskedFor) {
  for (const double hottest : {2.0, 4.0, 8.0}) {
    std::vector<int> rows =
        rows_of_experts(chosen(8192, {.experts = 64, .top_k = 6, .routing = Routing::zipf, .hottest = hottest}), 64);
    std::ranges::sort(rows, std::greater<>{});
    EXPECT_NEAR(rows.front() / 768.0, hottest, 0.1 * hottest);
    EXPECT_LT(rows.back(), 768);
  }
}

TEST(Routing, OtherSeedsHeatOtherExperts) {
  const Choices zipf{.experts = 64, .top_k = 6, .routing = Routing::zipf};
  const auto hottest = [&](std::uint64_t seed) {
    const std::vector<int> rows = rows_of_experts(chosen(2048, zipf, seed), 64);
    return std::ranges::max_element(rows) - rows.begin();
  };
  EXPECT_TRUE(hottest(1) != hottest(2) || hottest(1) != hottest(3));
  EXPECT_EQ(chosen(100, zipf, 5), chosen(100, zipf, 5));
}

TEST(Routing, PlantedExpertsHaveTheirRows) {
  const std::vector<int> experts = chosen(2048, {.experts = 64, .top_k = 8, .routing = Routing::planted});
  const std::vector<int> rows = rows_of_experts(experts, 64);
  EXPECT_THAT(std::vector<int>(rows.begin(), rows.begin() + 5), ElementsAreArray(planted_rows));
  EXPECT_EQ(experts[2] + 1, experts[3]);
}

TEST(Routing, PlantedRowsEndWithTheTokens) {
  const std::vector<int> rows = rows_of_experts(chosen(100, {.experts = 16, .top_k = 2, .routing = Routing::planted}), 16);
  EXPECT_THAT(std::vector<int>(rows.begin(), rows.begin() + 5), ElementsAre(0, 1, 99, 0, 0));
}

TEST(Routing, AllTokensMayChooseOneExpert) {
  const std::vector<int> rows = rows_of_experts(chosen(300, {.experts = 16, .top_k = 1, .routing = Routing::same_experts}), 16);
  EXPECT_EQ(std::ranges::count(rows, 300), 1);
}

TEST(GroupByExpert, KeepsTheOrderOfSlotsAndLeavesOutDroppedOnes) {
  const std::vector<int> experts_of{2, 0, -1, 2, 0, 3};
  const Grouped grouped = group_by_expert(experts_of, 4);
  EXPECT_THAT(grouped.offsets, ElementsAre(0, 2, 2, 4, 5));
  EXPECT_THAT(grouped.slot_of_row, ElementsAre(1, 4, 0, 3, 5, -1));
  EXPECT_THAT(grouped.row_of_slot, ElementsAre(2, 0, -1, 3, 1, 4));
}

}  // namespace
}  // namespace aisp::moe
