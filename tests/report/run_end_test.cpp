// SPDX-License-Identifier: Apache-2.0
// The terminal's output at the end of a run.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "report/console.hpp"

namespace aisp::report {
namespace {

using testing::HasSubstr;
using testing::Not;

evidence::PairResult passed(const std::string& name) {
  evidence::PairResult pair;
  pair.chapter = "ch07";
  pair.name = name;
  pair.target = "ch07:" + name;
  pair.status = evidence::Status::passed;
  return pair;
}

TEST(RunEnd, WarningsAreNamedEachOnceAndCountedWhenTheyAreMany) {
  evidence::SuiteResult suite{.pairs = {passed("a"), passed("b")}};
  for (evidence::PairResult& pair : suite.pairs) pair.warnings = {"the clock fell"};
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), HasSubstr("\nch07:a and 1 more: warning: the clock fell\n"));
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), Not(HasSubstr("in the reports")));
  for (int i = 0; i < 6; ++i) suite.pairs[0].warnings.push_back(fmt::format("number {}", i));
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), testing::AllOf(HasSubstr("number 3\n"), Not(HasSubstr("number 4\n"))));
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), HasSubstr("\n2 more warnings in the reports\n"));
}

TEST(RunEnd, ResultsOfOnePairAtSeveralSizesAreNotPairs) {
  evidence::SuiteResult suite{.pairs = {passed("a"), passed("a")}};
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), HasSubstr("\n2 pairs in "));
  suite.pairs[0].sweep_case = "rows_1";
  suite.pairs[1].sweep_case = "rows_2";
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), HasSubstr("\n2 results in "));
}

TEST(RunEnd, TheFiveSlowestAndTheirStages) {
  evidence::SuiteResult suite;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
    evidence::PairResult& pair = suite.pairs.emplace_back(passed(name));
    pair.wall_s = 10 + name[0] - 'a';
    pair.watchdog = {{.stage = evidence::Stage::setup, .elapsed_s = 0.1},
                     {.stage = evidence::Stage::verify, .elapsed_s = 3},
                     {.stage = evidence::Stage::measurement, .elapsed_s = 6}};
  }
  suite.pairs.emplace_back(passed("skipped")).status = evidence::Status::skipped;
  suite.pairs.back().wall_s = 100;
  const std::string text = summary(suite, {}, base::Painter{false});
  EXPECT_THAT(text, HasSubstr("Slowest:\n"
                              "  ch07:f  15 s (measurement 6.0 s, verify 3.0 s)\n"
                              "  ch07:e  14 s (measurement 6.0 s, verify 3.0 s)\n"));
  EXPECT_THAT(text, HasSubstr("  ch07:b  11 s"));
  EXPECT_THAT(text, Not(HasSubstr("  ch07:a  10 s"))) << "the sixth";
  EXPECT_THAT(text, Not(HasSubstr("ch07:skipped  ")));
  suite.pairs.resize(1);
  EXPECT_THAT(summary(suite, {}, base::Painter{false}), Not(HasSubstr("Slowest"))) << "one pair is no comparison";
}

}  // namespace
}  // namespace aisp::report
