// SPDX-License-Identifier: Apache-2.0
#include "suite/selftest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.hpp"

namespace aisp::suite {
namespace {

using evidence::PairResult;
using evidence::Stage;
using evidence::Status;

const pair::SelftestEntry& entry_of(std::string_view name) {
  const auto all = pair::selftest_registry();
  return *std::find_if(all.begin(), all.end(), [&](const pair::SelftestEntry& entry) { return entry.entry.name == name; });
}

PairResult ended(Status status, std::vector<evidence::Problem> problems) {
  PairResult result;
  result.status = status;
  result.problems = std::move(problems);
  return result;
}

SelftestVerdict verdict(std::string_view name, const PairResult& result) {
  return judge_selftest(entry_of(name), result).verdict;
}

TEST(Selftest, CaughtByTheCheckThatIsMeantForIt) {
  const SelftestLine line =
      judge_selftest(entry_of("zeros"),
                     ended(Status::failed, {{Stage::verify, "doubled", "reference"}, {Stage::verify, "doubled", "baseline"}}));
  EXPECT_EQ(line.verdict, SelftestVerdict::caught);
  EXPECT_EQ(line.expected, "failed: verify/reference");
  EXPECT_EQ(line.happened, "failed: verify/reference, verify/baseline");
  EXPECT_EQ(line.reason, "");
}

TEST(Selftest, AnotherCheckIsNoCatch) {
  EXPECT_EQ(verdict("zeros", ended(Status::failed, {{Stage::verify, "doubled", "written"}})), SelftestVerdict::slipped);
  EXPECT_EQ(verdict("zeros", ended(Status::failed, {{Stage::reverify, "doubled", "reference"}})), SelftestVerdict::slipped);
  EXPECT_EQ(verdict("zeros", ended(Status::crashed, {{Stage::verify, "doubled", "reference"}})), SelftestVerdict::slipped);
}

// No shipped pair needs to be of that kind for the rule to hold.
pair::SelftestEntry seen_by_either() {
  static const selftest::Case subject{.expected = selftest::fails("measurement/timed_samples", "audit/late_work"),
                                      .pair = entry_of("zeros").subject->pair};
  pair::SelftestEntry entry = entry_of("zeros");
  entry.subject = &subject;
  return entry;
}

TEST(Selftest, OneOfTheChecksThatMayComeFirstIsEnough) {
  const pair::SelftestEntry entry = seen_by_either();
  const auto verdict_by = [&](Stage stage, const char* check) {
    return judge_selftest(entry, ended(Status::failed, {{stage, "doubled", check}})).verdict;
  };
  EXPECT_EQ(verdict_by(Stage::measurement, "timed_samples"), SelftestVerdict::caught);
  EXPECT_EQ(verdict_by(Stage::audit, "late_work"), SelftestVerdict::caught);
  EXPECT_EQ(verdict_by(Stage::audit, "timed_samples"), SelftestVerdict::slipped);
  EXPECT_EQ(verdict_by(Stage::verify, "written"), SelftestVerdict::slipped);
  EXPECT_EQ(judge_selftest(entry, ended(Status::failed, {{Stage::measurement, "", ""}})).verdict, SelftestVerdict::slipped);
  EXPECT_EQ(judge_selftest(entry, ended(Status::failed, {})).expected, "failed: measurement/timed_samples or audit/late_work");
}

TEST(Selftest, UnnoticedOrRewardedIsNoCatch) {
  EXPECT_EQ(judge_selftest(entry_of("zeros"), ended(Status::passed, {})).reason, "it ended as passed");
  PairResult rewarded = ended(Status::failed, {{Stage::verify, "doubled", "reference"}});
  rewarded.best = "doubled";
  EXPECT_EQ(verdict("zeros", rewarded), SelftestVerdict::slipped);
}

TEST(Selftest, HonestPairs) {
  EXPECT_EQ(verdict("honest", ended(Status::passed, {})), SelftestVerdict::passed);
  EXPECT_EQ(verdict("honest", ended(Status::failed, {{Stage::verify, "doubled", "reference", "wrong"}})),
            SelftestVerdict::false_alarm);
  // Processes left behind are a complaint too, though the pair passes.
  EXPECT_EQ(verdict("honest", ended(Status::passed, {{Stage::exit, "", "processes_left", "one"}})), SelftestVerdict::false_alarm);
}

TEST(Selftest, EveryCheatNamesStagesThatThereAre) {
  for (const pair::SelftestEntry& entry : pair::selftest_registry())
    for (const selftest::Complaint& by : entry.subject->expected.by) {
      EXPECT_TRUE(by.check.empty() || base::find_word<Stage>(by.stage)) << entry.entry.name << ": " << by.stage;
    }
}

TEST(Selftest, TimesOfABusyMachineTellNothing) {
  PairResult busy = ended(Status::passed, {});
  busy.variants.emplace_back().checks.emplace();
  EXPECT_EQ(verdict("spinning_baseline", busy), SelftestVerdict::slipped);
  busy.variants[0].checks->off = {evidence::busy_when_verified};
  EXPECT_EQ(verdict("spinning_baseline", busy), SelftestVerdict::skipped);
  EXPECT_EQ(judge_selftest(entry_of("spinning_baseline"), busy).reason, "cannot tell: the machine was busy");
  EXPECT_EQ(verdict("zeros", busy), SelftestVerdict::slipped) << "its results are wrong, whatever the times";
}

TEST(Selftest, WhatOnlyAProfilerSeesIsSkippedWithoutOne) {
  PairResult unseen = ended(Status::passed, {});
  EXPECT_EQ(verdict("gpu_short_late_work", unseen), SelftestVerdict::slipped);
  unseen.lost = {{evidence::LostKind::cupti, "no CUPTI, so hidden work is sought by its effects only: not there"}};
  EXPECT_EQ(verdict("gpu_short_late_work", unseen), SelftestVerdict::skipped);
  EXPECT_EQ(verdict("gpu_zeros", unseen), SelftestVerdict::slipped);
}

TEST(Selftest, WhatCannotRunIsNoVerdict) {
  PairResult skipped = ended(Status::skipped, {});
  skipped.reason = "no CUDA device";
  EXPECT_EQ(verdict("gpu_zeros", skipped), SelftestVerdict::skipped);
  SelftestReport report;
  report.lines = {judge_selftest(entry_of("gpu_zeros"), skipped)};
  EXPECT_TRUE(report.good());
  report.lines.push_back(judge_selftest(entry_of("zeros"), ended(Status::passed, {})));
  EXPECT_FALSE(report.good());
}

TEST(Selftest, ASpyMustPassBecauseItSeesNothing) {
  EXPECT_EQ(verdict("spy_on_threads", ended(Status::passed, {})), SelftestVerdict::caught);
  const SelftestLine line =
      judge_selftest(entry_of("spy_on_threads"),
                     ended(Status::failed, {{Stage::measurement, "doubled", "exception", "this run looks unlike the first"}}));
  EXPECT_EQ(line.verdict, SelftestVerdict::slipped);
  EXPECT_EQ(line.reason, "this run looks unlike the first");
  EXPECT_EQ(line.expected, "passed: it sees nothing");
  EXPECT_FALSE(line.honest);
}

TEST(Selftest, FamiliesHoldTheirLines) {
  SelftestReport report;
  for (const char* name : {"zeros", "hang_in_verify", "wrong_result"})
    report.lines.push_back(judge_selftest(entry_of(name), ended(Status::failed, {{Stage::verify, "doubled", "reference"}})));
  report.lines[0].wall_s = 1;
  report.lines[2].wall_s = 2;
  const std::vector<SelftestFamily> families = families_of(report);
  ASSERT_EQ(families.size(), 2u);
  EXPECT_EQ(families[0].name, "wrong_results");
  EXPECT_EQ(families[0].about, "Their results are wrong every time they run");
  EXPECT_EQ(families[0].count(SelftestVerdict::caught), 1u);
  EXPECT_EQ(families[0].count(SelftestVerdict::slipped), 1u);
  EXPECT_EQ(families[0].wall_s(), 3);
  EXPECT_EQ(families[1].name, "hangs");
  EXPECT_EQ(families[1].lines.front()->name, "hang_in_verify");
}

TEST(Selftest, ShipsCheatsAndControlsForBothDevices) {
  for (const bool gpu : {false, true}) {
    const auto selected = select_selftest(!gpu, gpu);
    const auto honest = static_cast<std::size_t>(
        std::count_if(selected.begin(), selected.end(), [](const auto* entry) { return entry->subject->expected.honest(); }));
    EXPECT_GE(honest, 12u);
    EXPECT_GE(selected.size() - honest, 40u);
    for (const pair::SelftestEntry* entry : selected) EXPECT_EQ(entry->entry.pair, &entry->subject->pair);
  }
  EXPECT_EQ(select_selftest(true, true).size(), pair::selftest_registry().size());
}

TEST(Selftest, RunsThePairsAndFamiliesThatAreNamed) {
  const auto one = select_selftest(true, true, {"gpu_zeros"});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one.front()->entry.name, "gpu_zeros");
  EXPECT_TRUE(select_selftest(true, false, {"gpu_zeros"}).empty());
  const auto family = select_selftest(true, true, {"hangs", "zeros"});
  EXPECT_GT(family.size(), 3u);
  for (const pair::SelftestEntry* entry : family) EXPECT_TRUE(entry->family == "hangs" || entry->entry.name == "zeros");
  EXPECT_THROW(select_selftest(true, true, {"zeroes"}), base::Error);
}

}  // namespace
}  // namespace aisp::suite
