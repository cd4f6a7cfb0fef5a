// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include <gmock/gmock.h>

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr machine::CpuTimes before{.all = 1000, .busy = 100, .programs = 100};

TEST(TimeOfOthers, IsWorthAWarningWhereSomethingWasTimed) {
  evidence::PairResult timed{.variants = {{.name = "plain", .timing = evidence::Timing{}}}};
  add_time_of_others(timed, before, machine::CpuTimes{.all = 2000, .busy = 195, .programs = 195, .stolen = 5, .own = 95});
  add_time_of_others(timed, before, machine::CpuTimes{.all = 2000, .busy = 300, .programs = 300, .own = 100});
  add_time_of_others(timed, before, before);
  add_time_of_others(timed, std::nullopt, std::nullopt);
  EXPECT_THAT(timed.warnings,
              ElementsAre(HasSubstr("gave 5 % of the CPU time that this machine asked for to others: what the host does"),
                          HasSubstr("other programs had 10 % of this machine's CPU time: what the host does")));

  // A few ticks of a pair that only looked for its library say nothing.
  evidence::PairResult skipped{.variants = {{.name = "plain"}}};
  add_time_of_others(skipped, before, machine::CpuTimes{.all = 2000, .busy = 1000, .programs = 1000, .stolen = 500});
  EXPECT_TRUE(skipped.warnings.empty());
}

TEST(Environment, AQuotaThatWasUsedUpIsAWarning) {
  evidence::PairResult result;
  add_quota(result, 0.3, {.periods = 100, .throttled = 3}, {.periods = 323, .throttled = 218});
  EXPECT_THAT(result.warnings, testing::ElementsAre(testing::HasSubstr("quota of 0.3 CPUs was used up in 215 of 223 periods")));
  evidence::PairResult quiet;
  add_quota(quiet, 0.3, {.periods = 100, .throttled = 3}, {.periods = 323, .throttled = 3});
  add_quota(quiet, 0, {}, {.periods = 9, .throttled = 9});
  EXPECT_TRUE(quiet.warnings.empty());
}

}  // namespace
}  // namespace aisp::suite
