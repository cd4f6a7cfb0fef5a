// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/analysis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/system/files.hpp"
#include "measure/statistics/ratio.hpp"
#include "measure/statistics/statistics.hpp"

namespace aisp::evidence {
namespace {

using testing::HasSubstr;

// A world in which a run of a pair is measured: the machine is `slowdown` times slower than usual, the variant `loss` times
// slower still.
struct World {
  double speedup = 4, slowdown = 1, loss = 1;
  double noise = 0.005;    // of a sample
  double between = 0.003;  // of a process, common to none of its variants
  std::uint64_t seed = 1;
};

PairResult measured(const World& world) {
  std::mt19937_64 random{world.seed};
  std::normal_distribution<double> normal{0, 1};
  const double own = 1 + world.between * normal(random);
  std::vector<double> baseline, optimized;
  for (int round = 0; round < 40; ++round) {
    baseline.push_back(4 * world.slowdown * (1 + world.noise * normal(random)));
    optimized.push_back(4 / world.speedup * world.slowdown * world.loss * own * (1 + world.noise * normal(random)));
  }
  PairResult pair{
      .target = "ch07:transpose", .chapter = "ch07", .name = "transpose", .source_digest = "abc", .device = Device::gpu};
  pair.gpus = {"GPU-1"};
  pair.lesson = pair.best = "tiled";
  pair.started_utc = "2026-01-01T00:00:00Z";
  VariantResult first{.name = "strided", .role = VariantRole::baseline}, second{.name = "tiled", .role = VariantRole::optimized};
  first.timing = Timing{.summary = measure::summarize(baseline), .raw_times_ms = baseline};
  second.timing = Timing{.summary = measure::summarize(optimized), .raw_times_ms = optimized};
  const measure::Interval interval = measure::ratio_of_medians(baseline, optimized, world.seed);
  second.speedup = Speedup{interval.value, interval.low, interval.high, measure::verdict(interval)};
  pair.variants = {first, second};
  return pair;
}

class Analyzing : public testing::Test {
 protected:
  Analyzing() { record_runs(3); }

  // Runs of the machine as it was, each in a process of its own.
  void record_runs(std::uint64_t count) {
    for (std::uint64_t seed = 1001; seed < 1001 + count; ++seed) {
      Manifest manifest = manifest_;
      manifest.run_id = "recorded" + std::to_string(seed);
      record(folder_.path(), {.pairs = {measured({.seed = seed})}}, manifest);
    }
  }

  RunRecord run_of(std::vector<PairResult> pairs) {
    RunRecord run{.folder = "run", .manifest = manifest_, .pairs = std::move(pairs)};
    for (const PairResult& pair : run.pairs) run.manifest.targets.push_back(pair.target);
    return run;
  }
  Analysis look(const std::vector<RunRecord>& runs, const AnalysisOptions& options = {}) {
    ExpectationFolder expectations{folder_.path()};
    return analyze(runs, expectations, options);
  }
  AnalysisRow row_of(const World& world, const AnalysisOptions& options = {}) {
    const Analysis analysis = look({run_of({measured(world)})}, options);
    EXPECT_EQ(analysis.rows.size(), 1u);
    return analysis.rows.at(0);
  }
  static Manifest manifest_of(const char* gpu) {
    Manifest manifest{.run_id = "run", .commit = "1234", .cpu = "Some CPU", .cpus_usable = 16};
    manifest.gpus = {{.ordinal = 0, .name = gpu, .uuid = "GPU-1"}, {.ordinal = 1, .name = gpu, .uuid = "GPU-2"}};
    return manifest;
  }

  base::ScratchDirectory folder_;
  Manifest manifest_ = manifest_of("NVIDIA H200");
};

TEST_F(Analyzing, UnchangedRunsRaiseNoAlarm) {
  for (std::uint64_t seed = 2; seed < 202; ++seed) {
    const Analysis analysis = look({run_of({measured({.seed = seed})})});
    const Finding finding = analysis.rows.at(0).finding;
    EXPECT_TRUE(finding == Finding::ok || finding == Finding::slower || finding == Finding::rebased)
        << "seed " << seed << ": " << to_string(finding);
    EXPECT_EQ(exit_status(analysis), base::Exit::good) << "seed " << seed;
  }
}

TEST_F(Analyzing, ASlowdownOfFivePercentIsAlwaysARegression) {
  for (std::uint64_t seed = 2; seed < 102; ++seed) {
    const Analysis analysis = look({run_of({measured({.loss = 1.05, .seed = seed})})});
    EXPECT_EQ(analysis.rows.at(0).finding, Finding::regressed) << "seed " << seed;
    EXPECT_EQ(exit_status(analysis), base::Exit::regression);
  }
}

TEST_F(Analyzing, ASlowdownOfTwoPercentIsSeenInMostRunsAndGatesAtThatThreshold) {
  int seen = 0, gated = 0;
  for (std::uint64_t seed = 2; seed < 102; ++seed) {
    const Analysis lenient = look({run_of({measured({.loss = 1.02, .seed = seed})})});
    seen += lenient.rows.at(0).finding == Finding::slower;
    EXPECT_EQ(exit_status(lenient), base::Exit::good) << "a loss surely below the threshold must not turn a gate red";
    gated += row_of({.loss = 1.02, .seed = seed}, {.threshold = 0.02}).finding == Finding::regressed;
  }
  EXPECT_GE(seen, 75);
  EXPECT_GE(gated, 75);
}

TEST_F(Analyzing, WideIntervalsAreNoRegression) {
  EXPECT_EQ(row_of({.loss = 1.06, .noise = 0.2, .seed = 3}).finding, Finding::ok);
}

TEST_F(Analyzing, SaysWhichSideOfTheRatioMoved) {
  const AnalysisRow row = row_of({.loss = 1.1, .between = 0});
  EXPECT_EQ(row.finding, Finding::regressed);
  EXPECT_FALSE(row.confirmed);
  EXPECT_THAT(row.detail, HasSubstr("its time changed by +10."));
  EXPECT_THAT(row.detail, HasSubstr("of 1234"));
  EXPECT_THAT(row.detail, HasSubstr("unconfirmed"));
}

TEST_F(Analyzing, MarksTheLesson) {
  PairResult pair = measured({});
  pair.variants.push_back(pair.variants[1]);
  pair.variants[2].name = pair.best = "best";
  const Analysis analysis = look({run_of({pair})});
  ASSERT_EQ(analysis.rows.size(), 2u);
  for (const AnalysisRow& row : analysis.rows) EXPECT_EQ(row.lesson, row.variant == "tiled") << row.variant;
}

TEST_F(Analyzing, FasterIsGoodNews) {
  const Analysis analysis = look({run_of({measured({.loss = 0.9})})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::improved);
  EXPECT_EQ(exit_status(analysis), base::Exit::good);
}

TEST_F(Analyzing, BothSidesSlowerIsDrift) {
  const Analysis analysis = look({run_of({measured({.slowdown = 1.3})})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::drifted);
  EXPECT_EQ(exit_status(analysis), base::Exit::good);
  EXPECT_EQ(exit_status(look({run_of({measured({.slowdown = 1.3})})}, {.strict = true})), base::Exit::regression);
}

TEST_F(Analyzing, AFasterBaselineAloneIsNoRegression) {
  const Analysis analysis = look({run_of({measured({.slowdown = 1 / 1.1, .loss = 1.1})})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::rebased);
  EXPECT_THAT(analysis.rows.at(0).detail, HasSubstr("the baseline's by -9."));
  EXPECT_EQ(exit_status(analysis), base::Exit::good);
  EXPECT_EQ(look({run_of({measured({.slowdown = 1 / 1.03, .loss = 1.06})})}).rows.at(0).finding, Finding::regressed)
      << "both moved";
}

TEST_F(Analyzing, SeveralMeasurementsConfirmOrAcquit) {
  const RunRecord good = run_of({measured({.seed = 8})}), bad = run_of({measured({.loss = 1.1, .seed = 9})});
  const Analysis acquitted = look({bad, good});
  EXPECT_EQ(acquitted.rows.at(0).finding, Finding::ok);
  EXPECT_THAT(acquitted.rows.at(0).detail, HasSubstr("1 of 2"));
  EXPECT_EQ(exit_status(acquitted), base::Exit::good);
  const Analysis confirmed = look({bad, bad}, {.require_confirmation = true});
  EXPECT_TRUE(confirmed.rows.at(0).confirmed);
  EXPECT_EQ(confirmed.rows.at(0).measurements, 2);
  EXPECT_EQ(exit_status(confirmed), base::Exit::regression);
  EXPECT_EQ(exit_status(look({bad}, {.require_confirmation = true})), base::Exit::good);
}

TEST_F(Analyzing, OtherCodeIsStaleAndSaysWhatItWouldBe) {
  PairResult pair = measured({.loss = 1.5});
  pair.source_digest = "def";
  const Analysis analysis = look({run_of({pair})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::stale);
  EXPECT_THAT(analysis.rows.at(0).detail, HasSubstr("-33"));
  EXPECT_EQ(analysis.rows.at(0).would_be, Finding::regressed);
  EXPECT_EQ(exit_status(analysis), base::Exit::regression) << "a change of the code is what a gate is for";
  EXPECT_EQ(exit_status(look({run_of({pair})}, {.require_confirmation = true})), base::Exit::good);
  const Analysis confirmed = look({run_of({pair}), run_of({pair})}, {.require_confirmation = true});
  EXPECT_TRUE(confirmed.rows.at(0).confirmed);
  EXPECT_EQ(exit_status(confirmed), base::Exit::regression);
}

TEST_F(Analyzing, OtherCodeThatIsAsFastIsGood) {
  PairResult pair = measured({.seed = 5});
  pair.source_digest = "def";
  const Analysis analysis = look({run_of({pair})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::stale);
  EXPECT_EQ(analysis.rows.at(0).would_be, Finding::ok);
  EXPECT_EQ(exit_status(analysis), base::Exit::good);
  pair.judged_by = "bytes";
  EXPECT_EQ(exit_status(look({run_of({pair})})), base::Exit::nothing) << "nothing to compare it with";
}

PairResult host_decides(PairResult pair) {
  pair.host_dependent = true;
  pair.target = "ch07:launches";
  pair.name = "launches";
  return pair;
}

TEST_F(Analyzing, WhatTheHostDecidesIsNotComparedWithAnotherMachine) {
  record(folder_.path(), {.pairs = {host_decides(measured({}))}}, manifest_);
  EXPECT_EQ(look({run_of({host_decides(measured({.loss = 2}))})}).rows.at(0).finding, Finding::regressed);
  manifest_.cpus_usable = 2;
  const Analysis analysis = look({run_of({host_decides(measured({.loss = 2}))})}, {.strict = true});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::other_machine);
  EXPECT_THAT(analysis.rows.at(0).detail, HasSubstr("16 usable CPUs, now 2"));
  EXPECT_NEAR(change_percent(analysis.rows.at(0).expected->value, analysis.rows.at(0).speedup->value), -50, 1);
  EXPECT_EQ(exit_status(analysis), base::Exit::nothing);
  EXPECT_EQ(exit_status(look({run_of({host_decides(measured({.loss = 2})), measured({})})})), base::Exit::good);
  EXPECT_EQ(look({run_of({measured({.loss = 2})})}).rows.at(0).finding, Finding::regressed) << "this one waits for the GPU alone";
}

// A virtual machine of the same kind may be on a host that launches twice as fast.
TEST_F(Analyzing, WhatTheHostDecidesIsNotComparedWithAVirtualMachineOfOtherGpus) {
  manifest_.virtualization = "kvm";
  record(folder_.path(), {.pairs = {host_decides(measured({}))}}, manifest_);
  const auto slow_on = [&](std::vector<std::string> uuids) {
    manifest_.gpus.clear();
    for (const std::string& uuid : uuids) manifest_.gpus.push_back({.name = "NVIDIA H200", .uuid = uuid});
    PairResult pair = host_decides(measured({.loss = 2}));
    pair.gpus = {uuids.front()};
    return look({run_of({pair})}).rows.at(0);
  };
  EXPECT_EQ(slow_on({"GPU-2", "GPU-1"}).finding, Finding::regressed) << "the same host, the other one of its GPUs";
  const AnalysisRow elsewhere = slow_on({"GPU-3", "GPU-4"});
  EXPECT_EQ(elsewhere.finding, Finding::other_machine);
  EXPECT_THAT(elsewhere.detail, HasSubstr("a virtual machine of this kind with other GPUs"));
  manifest_.virtualization.clear();
  EXPECT_EQ(slow_on({"GPU-3", "GPU-4"}).finding, Finding::other_machine) << "recorded under a hypervisor";
}

TEST_F(Analyzing, RunsOfTwoMachinesRepeatNothing) {
  const RunRecord here = run_of({measured({.loss = 1.2, .seed = 3})});
  manifest_.cpus_usable = 2;
  const RunRecord there = run_of({measured({.loss = 1.2, .seed = 4})});
  const Analysis analysis = look({here, there}, {.require_confirmation = true});
  ASSERT_EQ(analysis.rows.size(), 2u);
  EXPECT_NE(analysis.rows[0].machine, analysis.rows[1].machine);
  for (const AnalysisRow& row : analysis.rows) {
    EXPECT_EQ(row.finding, Finding::regressed);
    EXPECT_FALSE(row.confirmed);
  }
  EXPECT_EQ(exit_status(analysis), base::Exit::good);
  EXPECT_EQ(look({here, here}).rows.size(), 1u);
}

TEST_F(Analyzing, ASpeedupThatIsNoNumberFailed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Speedup& speedup : {Speedup{nan, nan, nan}, Speedup{-5, -5, -5}, Speedup{4, 10, 1}, Speedup{0, 0, 0}}) {
    PairResult pair = measured({});
    pair.variants[1].speedup = speedup;
    const Analysis analysis = look({run_of({pair})});
    EXPECT_EQ(analysis.rows.at(0).finding, Finding::failed);
    EXPECT_EQ(exit_status(analysis), base::Exit::failed);
    EXPECT_EQ(look({run_of({pair}), run_of({measured({})})}).rows.at(0).finding, Finding::failed) << "in any run given";
  }
}

TEST_F(Analyzing, AValueWithoutAnIntervalIsNoRegression) {
  PairResult pair = measured({});
  pair.variants[1].speedup = Speedup{2, 2, 2, Verdict::cannot_tell};
  EXPECT_EQ(look({run_of({pair})}).rows.at(0).finding, Finding::ok);
}

TEST_F(Analyzing, SaysWhichDriverAndLimitWereOthers) {
  manifest_.driver_version = "580";
  record_runs(3);
  manifest_.driver_version = "590";
  EXPECT_THAT(row_of({.loss = 1.2}).detail, HasSubstr("with driver 580, now 590"));
}

TEST_F(Analyzing, SaysWhenAllThatWasRecordedIsOfOtherGpus) {
  EXPECT_THAT(row_of({.loss = 1.2}).detail, Not(HasSubstr("GPU")));
  PairResult pair = measured({.loss = 1.2});
  pair.gpus = {"GPU-2"};
  EXPECT_THAT(look({run_of({pair})}).rows.at(0).detail, HasSubstr("3 times on another GPU of this model"));
}

TEST_F(Analyzing, OtherHardwareIsNew) {
  manifest_ = manifest_of("NVIDIA H100 80GB HBM3");
  EXPECT_EQ(row_of({.loss = 2}).finding, Finding::fresh);
  EXPECT_EQ(row_of({.loss = 2}).hardware, "h100_80gb_hbm3");
}

TEST_F(Analyzing, WhatNothingWasHeldAgainstIsNotGood) {
  PairResult other = measured({});
  other.target = "ch07:other";
  other.name = "other";
  EXPECT_EQ(exit_status(look({run_of({other})})), base::Exit::nothing) << "new alone";
  EXPECT_EQ(exit_status(look({run_of({other, measured({})})})), base::Exit::good) << "new beside what was compared";
}

TEST_F(Analyzing, CasesOfASweepThatNeverStartedAreMissing) {
  PairResult small = measured({}), tall = measured({});
  small.sweep_case = "small";
  tall.sweep_case = "tall";
  small.sizes_set = tall.sizes_set = true;
  RunRecord cut = run_of({small});
  cut.manifest.cases = {{"ch07:transpose", {"small", "tall", "full"}}};
  const Analysis analysis = look({cut, cut});
  ASSERT_EQ(analysis.rows.size(), 2u) << "told once";
  EXPECT_EQ(analysis.rows[1].finding, Finding::missing);
  EXPECT_THAT(analysis.rows[1].detail, HasSubstr("cases tall, full:"));
  EXPECT_EQ(exit_status(analysis), base::Exit::failed);

  RunRecord rest = run_of({tall});
  rest.manifest.cases = {{"ch07:transpose", {"tall"}}};
  EXPECT_THAT(look({cut, rest}).rows.back().detail, HasSubstr("cases full:")) << "another run has tall";
  PairResult stopped = tall;
  stopped.status = Status::skipped;
  stopped.complete = false;
  rest.pairs = {stopped};
  EXPECT_THAT(look({rest}).rows.back().detail, HasSubstr("cases tall:")) << "what was interrupted has no result";
}

TEST_F(Analyzing, FailuresOutrankEverything) {
  PairResult wrong = measured({});
  wrong.status = Status::failed;
  wrong.reason = "outputs differ";
  const Analysis analysis = look({run_of({measured({.loss = 1.2})}), run_of({wrong})});
  ASSERT_EQ(analysis.rows.size(), 1u);
  EXPECT_EQ(analysis.rows[0].finding, Finding::failed);
  EXPECT_EQ(analysis.rows[0].detail, "outputs differ");
  EXPECT_EQ(exit_status(analysis), base::Exit::failed);
}

TEST_F(Analyzing, MissingOnlyWhatTheRunShouldHaveHad) {
  RunRecord elsewhere = run_of({});
  EXPECT_TRUE(look({elsewhere}).rows.empty()) << "an expected pair that nobody selected is not missing";
  EXPECT_EQ(exit_status(look({elsewhere})), base::Exit::nothing);
  RunRecord cut = run_of({});
  cut.manifest.targets = {"ch07:transpose"};
  EXPECT_EQ(look({cut}).rows.at(0).finding, Finding::missing);
  EXPECT_EQ(exit_status(look({cut})), base::Exit::failed);
  EXPECT_EQ(look({cut, run_of({measured({})})}).rows.at(0).finding, Finding::ok) << "the other half of a merge has it";
}

TEST_F(Analyzing, SkippedIsTold) {
  PairResult skipped = measured({});
  skipped.status = Status::skipped;
  skipped.reason = "no library";
  skipped.gpus.clear();
  const Analysis analysis = look({run_of({skipped})});
  EXPECT_EQ(analysis.rows.at(0).finding, Finding::skipped);
  EXPECT_TRUE(analysis.rows.at(0).lost_coverage);
  EXPECT_EQ(exit_status(analysis), base::Exit::nothing);
  EXPECT_EQ(exit_status(look({run_of({skipped})}, {.strict = true})), base::Exit::regression);
  const Analysis merged = look({run_of({skipped}), run_of({measured({})})});
  ASSERT_EQ(merged.rows.size(), 1u);
  EXPECT_EQ(merged.rows[0].finding, Finding::ok);
  skipped.reason = "not built; ./setup.sh builds it";
  const Analysis of_part = look({run_of({skipped})});
  EXPECT_EQ(of_part.rows.at(0).finding, Finding::skipped);
  EXPECT_FALSE(of_part.rows.at(0).lost_coverage) << "it was left out of the executable";
  EXPECT_EQ(of_part.rows.at(0).detail, skipped.reason);
  EXPECT_NE(exit_status(look({run_of({skipped})}, {.strict = true})), base::Exit::regression);
}

TEST_F(Analyzing, ScaledRunsAreNotCompared) {
  PairResult small = measured({.loss = 3});
  small.scale = 0.1;
  const AnalysisRow row = look({run_of({small})}).rows.at(0);
  EXPECT_EQ(row.finding, Finding::skipped);
  EXPECT_THAT(row.detail, HasSubstr("scale 0.1"));
}

TEST_F(Analyzing, ControlsAreHeldAgainstNothing) {
  PairResult pair = measured({});
  VariantResult control = pair.variants[1];
  control.name = "one_thread";
  control.role = VariantRole::control;
  pair.variants.push_back(control);
  record(folder_.path(), {.pairs = {pair}}, manifest_);
  EXPECT_EQ(look({run_of({pair})}).rows.size(), 1u);
  pair.variants.pop_back();
  EXPECT_EQ(look({run_of({pair})}).rows.size(), 1u) << "one that is gone is not missing";
}

TEST_F(Analyzing, AVanishedVariantIsMissing) {
  PairResult pair = measured({});
  pair.variants[1].name = "renamed";
  const Analysis analysis = look({run_of({pair})});
  ASSERT_EQ(analysis.rows.size(), 2u);
  EXPECT_EQ(analysis.rows[0].finding, Finding::fresh);
  EXPECT_EQ(analysis.rows[1].finding, Finding::missing);
  EXPECT_EQ(analysis.rows[1].variant, "tiled");
}

}  // namespace
}  // namespace aisp::evidence
