// SPDX-License-Identifier: Apache-2.0
// The audit's findings in timed samples: work that no clock saw, and work that was left out when it was timed or afterwards.
#include "run/child/audit/timed_difference.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace aisp::run {
namespace {

const TimedComparison on_one_gpu{.mode = TimingMode::events,
                                 .start = Start::released,
                                 .offset_ms = 0.002,
                                 .one_gpu = true,
                                 .by_host_memory = false,
                                 .constants_since_round = 0};

std::vector<AuditedRun> runs_of(const std::vector<double>& ms, int kernels = 1) {
  std::vector<AuditedRun> runs;
  for (const double time_ms : ms) {
    AuditedRun& run = runs.emplace_back();
    run.audit.timeline.busy_ns = run.audit.timeline.span_ns = static_cast<std::uint64_t>(time_ms * 1e6);
    run.audit.timeline.kernels = kernels;
    run.host_ms = time_ms + 0.1;
  }
  return runs;
}

Medians took(double ms, int kernels = 1) { return medians_of(runs_of(std::vector<double>(5, ms), kernels)); }

std::string found(const Variant& variant, const Medians& medians, double raw_ms, const TimedComparison& with = on_one_gpu) {
  const auto difference = run::difference(variant, medians, raw_ms, with);
  return difference ? difference->message : "";
}

const Variant variant{.name = "variant", .run = {}};

TEST(Audited, ExecutionsThatTakeWhatWasTimedAreNotAccused) {
  EXPECT_EQ(found(variant, took(1), 1.002), "");
  EXPECT_EQ(found(variant, took(1), 0.9), "") << "at another clock";
  EXPECT_EQ(found(variant, took(1), 1.15), "");
  EXPECT_EQ(found(variant, medians_of(runs_of({1, 1, 1, 9, 9})), 1), "") << "the median of them";
}

TEST(Audited, WorkThatNoClockSawIsFound) {
  EXPECT_EQ(found(variant, took(2), 1.002), "the GPU was busy for 2 ms in an execution that was timed as 1 ms");
  TimedComparison with = on_one_gpu;
  with.one_gpu = false;
  EXPECT_EQ(found(variant, took(2), 1.002, with), "") << "several are busy at once";
}

TEST(Audited, WorkThatIsLeftOutInTheAuditIsFound) {
  EXPECT_EQ(found(variant, took(0.5), 1.002), "timed as 1 ms, but an execution like it took 0.5 ms afterwards");
  Variant control = variant;
  control.outputs = no_outputs;
  EXPECT_EQ(found(control, took(0.5), 1.002), "") << "nobody verifies what it does";
  EXPECT_NE(found(control, took(2), 1.002), "");
}

TEST(Audited, HostTimesMayBeLongerUnderTheProfilerFromAnImmediateStart) {
  TimedComparison with = on_one_gpu;
  with.start = Start::immediate;
  EXPECT_EQ(found(variant, took(0.5), 1.002, with), "") << "of 0.6 ms of the host's";
  EXPECT_EQ(found(variant, took(0.3), 1.002, with), "timed as 1 ms, but an execution like it took 0.4 ms afterwards");
}

TEST(Audited, ShortKernelsMayOverlapInTimedSamplesOnly) {
  EXPECT_EQ(found(variant, took(0.32, 320), 0.042), "") << "branches of a graph";
  EXPECT_NE(found(variant, took(0.32, 40), 0.042), "") << "8 us each";
}

TEST(Audited, KernelsOfGraphsMayOverlapInTimedSamplesOnly) {
  Medians medians = took(2.18, 530);
  EXPECT_NE(found(variant, medians, 0.514), "") << "launched one by one";
  medians.nodes = 530;
  EXPECT_EQ(found(variant, medians, 0.514), "");
  medians.busy_ms = 3.4;
  EXPECT_NE(found(variant, medians, 0.514), "") << "more than 6 us each";
}

class OnTimedInputs : public testing::Test {
 protected:
  // One round: its inputs are timed once, and then `times - 1` times more.
  void round(std::uint64_t inputs, double first_ms, double again_ms = 0, int times = 1) {
    for (int i = 0; i < times; ++i) {
      measure::Sample& sample = timed.samples.emplace_back();
      sample.round = rounds;
      sample.raw_ms = i == 0 ? first_ms : again_ms;
      sample.inputs = inputs;
      sample.again_on_inputs = i > 0;
    }
    ++rounds;
  }
  bool agrees(const std::vector<std::uint64_t>& inputs, double audited_ms) const {
    return took_as_timed(timed, inputs, took(audited_ms), on_one_gpu);
  }

  int rounds = 0;
  Timed timed{.variant = &variant, .result = {}, .samples = {}};
};

TEST_F(OnTimedInputs, ATimeThatDependsOnTheDataIsHeldAgainstThatOfTheSameData) {
  round(1, 4, 4.01, 2), round(2, 6, 6.01, 2), round(3, 4, 4.01, 2);
  EXPECT_TRUE(agrees({2, 2, 2}, 6));
  EXPECT_TRUE(agrees({1, 3, 1}, 4));
  EXPECT_FALSE(agrees({1, 3, 1}, 6));
  EXPECT_FALSE(agrees({2, 2, 2}, 4));
}

TEST_F(OnTimedInputs, WhatWasRememberedDoesNotCount) {
  round(1, 4, 1, 3), round(2, 4, 1, 3);
  EXPECT_FALSE(agrees({1, 2}, 4)) << "work when it met the inputs, and none later";
  EXPECT_FALSE(agrees({1, 2}, 1)) << "as quick afterwards as when it remembered";
}

TEST_F(OnTimedInputs, ThatTheVariantHadAllMetBeforeSayNothingForIt) {
  round(1, 4, 4, 2), round(2, 4, 4, 2);
  EXPECT_TRUE(agrees({1, 2}, 4));
  for (measure::Sample& sample : timed.samples) sample.again_on_inputs = true;
  EXPECT_FALSE(agrees({1, 2}, 4));
  TimedComparison several = on_one_gpu;
  several.one_gpu = false;
  EXPECT_FALSE(took_as_timed(timed, {1, 2}, took(4), several));
}

TEST_F(OnTimedInputs, AreDrawnAsOftenAsTheyWereTimed) {
  base::OneWayRandom random{1};
  EXPECT_TRUE(timed_inputs(timed, 0, 5, random).empty()) << "no samples";
  round(1, 4), round(2, 4, 4, 2), round(3, 4);
  EXPECT_EQ(timed_inputs(timed, 0, 5, random).size(), 5u);
  std::map<std::uint64_t, int> drawn;
  for (const std::uint64_t seed : timed_inputs(timed, 1, 3000, random)) ++drawn[seed];
  EXPECT_EQ(drawn.count(1), 0u) << "before constants were what they are";
  EXPECT_NEAR(drawn[2], 2000, 150);
  EXPECT_NEAR(drawn[3], 1000, 150);
}

}  // namespace
}  // namespace aisp::run
