// SPDX-License-Identifier: Apache-2.0
#include "suite/environment.hpp"

#include <gmock/gmock.h>

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(StolenTime, IsWorthAWarningWhereSomethingWasTimed) {
  evidence::PairResult timed{.variants = {{.name = "plain", .timing = evidence::Timing{}}}};
  add_stolen_time(timed, "the hypervisor gave 5 % away");
  add_stolen_time(timed, "");
  EXPECT_THAT(timed.warnings, ElementsAre(HasSubstr("gave 5 % away: what the host does")));

  // A few ticks of a pair that only looked for its library say nothing.
  evidence::PairResult skipped{.variants = {{.name = "plain"}}};
  add_stolen_time(skipped, "the hypervisor gave 50 % away");
  EXPECT_TRUE(skipped.warnings.empty());
}

}  // namespace
}  // namespace aisp::suite
