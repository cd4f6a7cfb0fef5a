// SPDX-License-Identifier: Apache-2.0
#include "pair/sizes.hpp"

#include <gmock/gmock.h>

#include <stdexcept>

#include "pair/registry.hpp"

namespace aisp::pair {
namespace {

using ::testing::HasSubstr;

constexpr Pair sized{.teaches = "sizes",
                     .make = nullptr,
                     .baseline = {.name = "slow"},
                     .optimized = variants({{.name = "fast"}}),
                     .sizes = sizes({{.name = "m", .full = 8192, .multiple = 256},
                                     {.name = "batch", .full = 2, .most = 64, .scales = false},
                                     {.name = "rest", .full = 0, .multiple = 8},
                                     option("causal")})};
constexpr Pair with_least{.teaches = "a size has a least value",
                          .make = nullptr,
                          .baseline = {.name = "slow"},
                          .optimized = variants({{.name = "fast"}}),
                          .sizes = sizes({{.name = "rows", .full = 1000, .multiple = 8, .least = 60},
                                          {.name = "tail", .full = 32, .multiple = 8, .least = 0}})};
constexpr Pair plain{
    .teaches = "no sizes", .make = nullptr, .baseline = {.name = "slow"}, .optimized = variants({{.name = "fast"}})};

std::string complaint(const SizeMap& set, const Pair& pair = sized) { return wrong_size(pair, set).value_or(""); }

TEST(Sizes, AreNamesAndNumbers) {
  EXPECT_EQ(parse_sizes("m=4096"), (SizeMap{{"m", 4096}}));
  EXPECT_EQ(parse_sizes("n=1,k=0"), (SizeMap{{"n", 1}, {"k", 0}}));
  for (const char* bad :
       {"", "m", "m=", "=5", "m=x", "m=4 096", "m=-1", "m=1.5", "m=1,m=2", "m=1,", "m=1e3", "m=99999999999999999999"})
    EXPECT_THROW(parse_sizes(bad), std::invalid_argument) << bad;
}

TEST(Sizes, AreCheckedAgainstWhatThePairDeclares) {
  EXPECT_EQ(complaint({{"m", 4096}, {"batch", 64}, {"causal", 1}}), "");
  EXPECT_THAT(complaint({{"n", 4096}}), HasSubstr("there is no size 'n'; its sizes are m, batch, rest, causal"));
  EXPECT_THAT(complaint({{"m", 4096}}, plain), HasSubstr("declares no sizes"));
  EXPECT_THAT(complaint({{"m", 300}}), HasSubstr("m 300 is not a multiple of 256; 256 is the nearest"));
  EXPECT_THAT(complaint({{"m", 65535}}), HasSubstr("65536 is the nearest"));
  EXPECT_THAT(complaint({{"m", 0}}), HasSubstr("m 0 is not from 256 to 65536"));
  EXPECT_THAT(complaint({{"m", ~0ull}}), HasSubstr("not from 256 to 65536"));
  EXPECT_THAT(complaint({{"causal", 2}}), HasSubstr("causal 2 is not from 0 to 1"));
}

TEST(Sizes, WithoutASettingTheFullSizeTimesTheScale) {
  EXPECT_EQ(sizes_in_effect(sized, {}, 1), (SizeMap{{"m", 8192}, {"batch", 2}, {"causal", 0}, {"rest", 0}}));
  EXPECT_EQ(sizes_in_effect(sized, {}, 0.1), (SizeMap{{"m", 768}, {"batch", 2}, {"causal", 0}, {"rest", 0}}));
  // A size that is set is meant as it stands.
  EXPECT_EQ(sizes_in_effect(sized, {{"m", 512}}, 0.1), (SizeMap{{"m", 512}, {"batch", 2}, {"causal", 0}, {"rest", 0}}));
  EXPECT_THROW(sizes_in_effect(sized, {{"m", 1}}, 1), std::invalid_argument);
}

TEST(Sizes, BelowTheLeastMultipleAreRefusedAndNotScaledTo) {
  EXPECT_EQ(complaint({{"rows", 64}, {"tail", 0}}, with_least), "");
  EXPECT_THAT(complaint({{"rows", 56}}, with_least), HasSubstr("rows 56 is not from 64 to 65536"));
  EXPECT_THAT(complaint({{"rows", 65}}, with_least), HasSubstr("64 is the nearest"));
  EXPECT_EQ(sizes_in_effect(with_least, {}, 0.01), (SizeMap{{"rows", 64}, {"tail", 8}}));
}

TEST(Sizes, EveryCaseOfEveryPairIsOneThatThePairTakes) {
  for (const Entry& entry : registry())
    for (const Case& each : entry.name == "declared_wrongly" ? Cases{} : entry.pair->sweep)
      EXPECT_EQ(complaint(parse_sizes(each.sizes), *entry.pair), "") << entry.target() << " " << each.name;
}

}  // namespace
}  // namespace aisp::pair
