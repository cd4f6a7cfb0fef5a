// SPDX-License-Identifier: Apache-2.0
#include "evidence/quantities.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace aisp::evidence {
namespace {

TEST(Quantities, HaveNamesOfTheirOwnAndSomethingToShow) {
  std::set<std::string_view> ids, compared;
  for (const Quantity& quantity : quantities()) {
    EXPECT_TRUE(ids.insert(quantity.id).second) << quantity.id;
    EXPECT_NE(quantity.get == nullptr, quantity.words == nullptr) << quantity.id;
    EXPECT_EQ(quantity.group.empty(), quantity.title.empty()) << quantity.id;
    const bool known = std::ranges::find(quantity_groups, quantity.group) != std::end(quantity_groups);
    EXPECT_TRUE(known || quantity.group.empty()) << quantity.id << " is in no table: " << quantity.group;
    if (quantity.compared.name.empty()) continue;
    EXPECT_TRUE(compared.insert(quantity.compared.name).second) << quantity.id;
    EXPECT_TRUE(quantity.get != nullptr || quantity.compared.get != nullptr) << quantity.id;
  }
}

TEST(Quantities, OfAVariantWithoutAnythingAreNone) {
  const PairResult pair;
  const VariantResult variant;
  for (const Quantity& quantity : quantities()) {
    if (quantity.words != nullptr) {
      EXPECT_EQ(quantity.words(pair, variant), "") << quantity.id;
    } else {
      EXPECT_FALSE(quantity.get(pair, variant)) << quantity.id;
    }
    if (quantity.compared.get != nullptr) {
      EXPECT_FALSE(quantity.compared.get(variant)) << quantity.id;
    }
  }
}

TEST(Quantities, OnlyWhatMayBeClaimed) {
  PairResult pair;
  VariantResult variant;
  variant.speedup = Speedup{.value = 2, .low = 1.9, .high = 2.1};
  const auto speedup = std::ranges::find(quantities(), "speedup", &Quantity::id);
  ASSERT_NE(speedup, quantities().end());
  EXPECT_EQ(speedup->get(pair, variant)->low, 1.9);
  pair.status = Status::failed;
  EXPECT_FALSE(speedup->get(pair, variant));
}

}  // namespace
}  // namespace aisp::evidence
