// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "run/results/speedups.hpp"

namespace aisp::run {
namespace {

std::vector<measure::Sample> samples_of(const std::vector<double>& raw_ms) {
  std::vector<measure::Sample> samples;
  for (const double time_ms : raw_ms) {
    measure::Sample& sample = samples.emplace_back();
    sample.round = static_cast<int>(samples.size()) - 1;
    sample.raw_ms = time_ms;
    sample.metrics = {{"rate", 1 / time_ms, "1/ms", Metrics::Better::higher}};
  }
  return samples;
}

const std::vector<double> probe(20, 0.003);
const measure::Correction correction{.probe = probe, .probe_work = 0.001, .accuracy = 2e-4, .step = 1e-4};

TEST(Timing, IsWithoutTheOffsetAndSaysHowWellThatIsKnown) {
  std::vector<double> raw_ms;
  for (int i = 0; i < 20; ++i) raw_ms.push_back(i < 10 ? 0.0120 : 0.0124);
  const evidence::Timing timing = timing_of(samples_of(raw_ms), correction, {});
  EXPECT_NEAR(timing.offset_ms, 0.002, 1e-5);
  EXPECT_EQ(timing.offset_accuracy_ms, 2e-4);
  EXPECT_EQ(timing.clock_step_ms, 1e-4);
  EXPECT_EQ(timing.raw_times_ms, raw_ms);
  EXPECT_NEAR(timing.summary.median, 0.0102, 1e-4);
  ASSERT_TRUE(timing.autocorrelation);
  EXPECT_GT(*timing.autocorrelation, 0.7) << "slow from the middle on";
}

TEST(Timing, OfNothingIsWhatTheStopwatchCannotTellFromIt) {
  const evidence::Timing timing = timing_of(samples_of(std::vector<double>(20, 0.0019)), correction, {});
  EXPECT_EQ(timing.summary.median, 2e-4);
}

TEST(Speedup, OfTimesIsCorrectedAndThatOfMetricsIsNot) {
  const auto baseline = samples_of(std::vector<double>(20, 0.012)), variant = samples_of(std::vector<double>(20, 0.007));
  const measure::Interval by_time = speedup_interval(baseline, variant, {"", 1}, {.correction = correction});
  EXPECT_NEAR(by_time.value, 2, 0.02);
  EXPECT_LT(by_time.low, 10.2 / 5.2 + 0.01);
  const measure::Interval by_rate = speedup_interval(baseline, variant, {"rate", 1}, {.correction = correction});
  EXPECT_NEAR(by_rate.value, 12.0 / 7, 1e-9) << "higher is better";
  EXPECT_EQ(by_rate.low, by_rate.high);
  EXPECT_THROW(speedup_interval(baseline, variant, {"absent", 1}, {}), std::runtime_error);
}

TEST(Metrics, RatesAreOfTheTimeWithoutTheOffset) {
  auto samples = samples_of(std::vector<double>(20, 0.012));
  for (measure::Sample& sample : samples)
    sample.metrics = {{.name = "images", .value = 5, .unit = "images/s", .better = Metrics::Better::higher, .is_rate = true}};
  const std::vector<evidence::Metric> metrics = metrics_of(samples, 0.002, {});
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0].unit, "images/s");
  EXPECT_EQ(metrics[0].better, evidence::Direction::higher);
  EXPECT_NEAR(metrics[0].summary.median, 5e5, 1e-3);
  EXPECT_NEAR(metrics_of(samples, 0.012, {})[0].summary.median, 5 / 12e-6, 1e-3) << "nothing is left of the time";
}

TEST(Speedup, ShortTimesHaveNoVerdict) {
  const auto baseline = samples_of(std::vector<double>(20, 0.012)), variant = samples_of(std::vector<double>(20, 0.0025));
  const evidence::Speedup speedup = speedup_of(speedup_interval(baseline, variant, {"", 1}, {.correction = correction}));
  EXPECT_EQ(speedup.verdict, evidence::Verdict::cannot_tell);
  EXPECT_EQ(speedup.effective_rounds, 20);
}

}  // namespace
}  // namespace aisp::run
