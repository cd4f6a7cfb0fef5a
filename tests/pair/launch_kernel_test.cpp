// SPDX-License-Identifier: Apache-2.0
#include "pair/launch_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <aisp/check.hpp>

#include <string>
#include <string_view>

namespace aisp::pair {
namespace {

using testing::HasSubstr;

struct Kind {
  std::string_view name;
  std::size_t shared_bytes;  // that one block may have, as cudaDevAttrMaxSharedMemoryPerBlockOptin says
  bool clusters;
};
constexpr Kind a100{"A100", 166'912, false}, rtx_3090{"RTX 3090", 101'376, false}, l40s{"L40S", 101'376, false},
    h200{"H200", 232'448, true}, b200{"B200", 232'448, true}, rtx_5090{"RTX 5090", 101'376, true};

std::string why_not(std::size_t needed, const Kind& kind) {
  try {
    demand_shared_memory(needed, kind.shared_bytes);
  } catch (const Unsupported& reason) {
    return reason.what();
  }
  return "";
}

TEST(LaunchLimits, SayWhatABlockNeedsAndWhatThereIs) {
  constexpr std::size_t four_stages = 196'608, three_stages = 147'456, two_stages = 98'304;  // of chapter 10's ring on mma.sync
  for (const Kind& large : {h200, b200}) EXPECT_EQ(why_not(four_stages, large), "") << large.name;
  EXPECT_THAT(why_not(four_stages, a100), AllOf(HasSubstr("196608 bytes"), HasSubstr("166912")));
  EXPECT_EQ(why_not(three_stages, a100), "");
  for (const Kind& small : {rtx_3090, l40s, rtx_5090}) {
    EXPECT_THAT(why_not(three_stages, small), AllOf(HasSubstr("147456 bytes"), HasSubstr("101376"))) << small.name;
    EXPECT_EQ(why_not(two_stages, small), "") << small.name;
  }
}

TEST(LaunchLimits, TakeAllOfTheMemoryThereIs) {
  for (const Kind& kind : {a100, rtx_3090, l40s, h200, b200, rtx_5090}) {
    EXPECT_EQ(why_not(kind.shared_bytes, kind), "") << kind.name;
    EXPECT_NE(why_not(kind.shared_bytes + 1, kind), "") << kind.name;
  }
}

TEST(LaunchLimits, SayWhereThereAreNoClusters) {
  for (const Kind& kind : {h200, b200, rtx_5090}) EXPECT_NO_THROW(demand_clusters(8, kind.clusters)) << kind.name;
  for (const Kind& kind : {a100, rtx_3090, l40s}) EXPECT_THROW(demand_clusters(8, kind.clusters), Unsupported) << kind.name;
}

}  // namespace
}  // namespace aisp::pair
