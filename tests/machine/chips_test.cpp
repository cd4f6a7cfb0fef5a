// SPDX-License-Identifier: Apache-2.0
#include "machine/chips.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "machine/gpu_specs.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;

TEST(Chips, AnUnknownOneIsGivenTheMostOfAll) {
  for (const int known : {80, 86, 87, 89, 90, 100, 103, 110, 120, 121})
    for (std::size_t i = 0; i < math_kinds; ++i) {
      EXPECT_LE(chip_of(known).per_clock[i], std::max(chip_of(130).per_clock[i], chip_of(90).per_clock[i])) << known;
    }
  EXPECT_TRUE(chip_of(130).tma);
  EXPECT_TRUE(chip_of(130).dsmem);
  EXPECT_EQ(chip_of(130).tcgen05, Tcgen05::unknown);
  EXPECT_EQ(chip_of(130).unified_kib, 0);
  EXPECT_FALSE(chip_of(75).tma);
}

TEST(Chips, TellWhoHasTcgen05) {
  EXPECT_THAT(chips_with(Tcgen05::present), ElementsAre(100, 103, 110));
  EXPECT_THAT(chips_with(Tcgen05::lacking_on_blackwell), ElementsAre(120, 121));
}

TEST(Chips, SharedMemoryIsPartOfTheL1) {
  EXPECT_EQ(chip_of(90).unified_kib, 256);
  EXPECT_EQ(chip_of(90).shared_kib.back(), 228);
  EXPECT_EQ(chip_of(89).shared_kib.back(), 100);
}

TEST(NumberTypes, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (const NumberTraits& traits : number_traits) EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
  EXPECT_EQ(name_of(Math::bf16), "bf16");
  EXPECT_EQ(traits_of(NumberType::fp4).bytes, 0.5);
}

TEST(RecordedCeilings, AreOfTheVeryProduct) {
  ASSERT_NE(recorded_of_reported("NVIDIA H200"), nullptr);
  EXPECT_EQ(recorded_of_reported("NVIDIA H200 NVL"), nullptr);
  EXPECT_EQ(recorded_of_reported("NVIDIA X900"), nullptr);
}

}  // namespace
}  // namespace aisp::machine
