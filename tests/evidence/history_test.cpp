// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/history.hpp"

#include <gtest/gtest.h>

#include <random>

#include "evidence/comparison/comparison.hpp"

namespace aisp::evidence {
namespace {

std::vector<double> noisy(std::size_t count, double level, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::normal_distribution<double> normal{level, 0.005 * level};
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

TEST(Steps, OfAnUnchangedSeriesThereAreNone) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) EXPECT_TRUE(find_steps(noisy(30, 4, seed)).empty()) << seed;
}

TEST(Steps, AreFoundWhereTheyAre) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<double> values = noisy(12, 4, seed);
    const std::vector<double> later = noisy(12, 3.8, seed + 100);
    values.insert(values.end(), later.begin(), later.end());
    const std::vector<SeriesStep> steps = find_steps(values);
    ASSERT_EQ(steps.size(), 1u) << seed;
    EXPECT_EQ(steps[0].at, 12u);
    EXPECT_NEAR(steps[0].before, 4, 0.03);
    EXPECT_NEAR(steps[0].after, 3.8, 0.03);
    EXPECT_LE(steps[0].p_value, 0.01);
  }
}

TEST(Steps, TwoInOneDirectionAreTwo) {
  std::vector<double> values = noisy(12, 4, 1);
  for (const double value : noisy(12, 5, 2)) values.push_back(value);
  for (const double value : noisy(12, 6, 3)) values.push_back(value);
  const std::vector<SeriesStep> steps = find_steps(values);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].at, 12u);
  EXPECT_EQ(steps[1].at, 24u);
}

TEST(Steps, OneOutlierIsNone) {
  std::vector<double> values = noisy(20, 4, 1);
  values[11] = 40;
  EXPECT_TRUE(find_steps(values).empty());
}

TEST(Steps, FewValuesTellNothing) {
  EXPECT_TRUE(find_steps(std::vector<double>{4, 4, 4, 4, 2, 2, 2, 2}).empty());
  EXPECT_TRUE(find_steps(std::vector<double>{}).empty());
}

std::vector<std::size_t> days_of(std::size_t count, std::size_t a_day) {
  std::vector<std::size_t> days(count);
  for (std::size_t i = 0; i < count; ++i) days[i] = i / a_day;
  return days;
}

TEST(Steps, RunsOfADayAreOneWitness) {
  // Four runs a day on a machine that every day is in another state: 1.5 % between days, 0.2 % between runs of a day.
  constexpr int series = 100;
  int alarms = 0, alarms_by_run = 0;
  for (std::uint64_t seed = 1; seed <= series; ++seed) {
    std::mt19937_64 random{seed};
    std::normal_distribution<double> normal;
    std::vector<double> values;
    for (int day = 0; day < 12; ++day) {
      const double state = 4 * (1 + 0.015 * normal(random));
      for (int run = 0; run < 4; ++run) values.push_back(state * (1 + 0.002 * normal(random)));
    }
    alarms += !find_steps(values, days_of(values.size(), 4)).empty();
    alarms_by_run += !find_steps(values).empty();
  }
  // 1 % of a hundred series and three standard deviations.
  EXPECT_LE(alarms, 4);
  EXPECT_GE(alarms_by_run, 15) << "or the days make no difference";
}

TEST(Steps, BetweenManyDaysAreFound) {
  std::vector<double> values = noisy(24, 4, 3);
  for (const double value : noisy(24, 3.7, 4)) values.push_back(value);
  const std::vector<SeriesStep> steps = find_steps(values, days_of(48, 4));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].at, 24u);
  EXPECT_TRUE(find_steps(values, days_of(48, 24)).empty()) << "two days are two values";
}

std::vector<double> changed_at_the_end(std::size_t before, std::size_t after, std::uint64_t seed) {
  std::vector<double> values = noisy(before, 4, seed);
  for (const double value : noisy(after, 3.6, seed + 100)) values.push_back(value);
  return values;
}

TEST(Recent, ChangesShowInTheLastDays) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(find_steps(changed_at_the_end(17, 3, seed)).size() <= 1);
    const auto recent = find_recent(changed_at_the_end(17, 3, seed));
    ASSERT_TRUE(recent) << seed;
    EXPECT_EQ(recent->at, 17u);
    EXPECT_NEAR(recent->before, 4, 0.03);
    EXPECT_NEAR(recent->after, 3.6, 0.03);
    EXPECT_LE(recent->p_value, 0.01);
    EXPECT_TRUE(find_recent(changed_at_the_end(34, 2, seed)));
    EXPECT_TRUE(find_recent(changed_at_the_end(9, 4, seed)));
  }
}

TEST(Recent, TooFewDaysTellNothing) {
  EXPECT_FALSE(find_recent(changed_at_the_end(33, 2, 1)));
  EXPECT_FALSE(find_recent(changed_at_the_end(13, 3, 2)));
  EXPECT_FALSE(find_recent(changed_at_the_end(40, 1, 1))) << "the last run alone";
  EXPECT_FALSE(find_recent(changed_at_the_end(17, 3, 1), days_of(20, 3)));
  EXPECT_FALSE(find_recent(std::vector<double>{}));
  EXPECT_FALSE(find_recent(std::vector<double>{1}));
}

TEST(Recent, UnchangedSeriesRarelyRaiseAFalseAlarm) {
  constexpr int series = 2000;
  int alarms = 0;
  std::mt19937_64 random{1};
  std::normal_distribution<double> normal{4, 0.04};
  for (int i = 0; i < series; ++i) {
    std::vector<double> values(40);
    for (double& value : values) value = normal(random);
    alarms += find_recent(values).has_value();
  }
  EXPECT_LE(alarms, 33);  // 1 % and three standard deviations
}

RunRecord run_at(int day, double speedup, const std::string& driver) {
  RunRecord run;
  run.manifest.run_id = "run" + std::to_string(day);
  run.manifest.hostname = "node1";
  run.manifest.driver_version = driver;
  PairResult pair{.target = "ch03:x", .chapter = "ch03", .name = "x", .source_digest = "abc", .device = Device::host};
  pair.started_utc = "2026-01-" + std::to_string(10 + day);
  VariantResult variant{.name = "v"};
  variant.timing.emplace().summary.median = 1 / speedup;
  variant.speedup = Speedup{speedup, speedup, speedup, Verdict::faster};
  pair.variants = {{.name = "b", .role = VariantRole::baseline}, variant};
  pair.lesson = pair.best = "v";
  run.pairs = {pair};
  return run;
}

TEST(History, NamesTheRunAndTheLikelyCauseOfAStep) {
  std::vector<RunRecord> runs;
  for (int day = 19; day >= 0; --day)
    runs.push_back(run_at(day, day < 10 ? 4 + day * 0.001 : 3 + day * 0.001, day < 10 ? "580" : "590"));
  const std::vector<Series> all = history(runs);
  ASSERT_EQ(all.size(), 2u);
  const Series& speedup = all[1];
  EXPECT_EQ(speedup.quantity, SeriesOf::speedup);
  ASSERT_EQ(speedup.steps.size(), 1u);
  EXPECT_EQ(speedup.steps[0].run_id, "run10");
  EXPECT_FALSE(speedup.steps[0].source_changed);
  ASSERT_EQ(speedup.steps[0].causes.size(), 1u);
  EXPECT_EQ(speedup.steps[0].causes[0].after, "590");
}

TEST(History, OfAContainerIsThatOfItsGpus) {
  const auto machine = [](const std::string& container, const std::string& hostname, const std::string& gpu) {
    RunRecord run = run_at(0, 4, "580");
    run.manifest.container = container;
    run.manifest.hostname = hostname;
    run.pairs[0].device = Device::gpu;
    run.pairs[0].gpus = {gpu};
    return machine_in_history(run.pairs[0], run.manifest);
  };
  EXPECT_EQ(machine("docker", "0f3c", "GPU-1"), machine("docker", "77aa", "GPU-1")) << "each container has a name of its own";
  EXPECT_NE(machine("docker", "0f3c", "GPU-1"), machine("docker", "0f3c", "GPU-2"));
  EXPECT_EQ(machine("", "node1", "GPU-1"), "node1");
}

TEST(History, SaysWhatTheLastRunsShow) {
  std::vector<RunRecord> runs;
  for (int day = 0; day < 20; ++day) runs.push_back(run_at(day, day < 17 ? 4 + day % 3 * 0.001 : 3, "580"));
  const Series speedup = history(runs).at(1);
  EXPECT_EQ(speedup.days, 20u);
  ASSERT_TRUE(speedup.recent || !speedup.steps.empty());
  EXPECT_EQ(speedup.recent ? speedup.recent->run_id : speedup.steps[0].run_id, "run17");
  std::vector<RunRecord> one_day;
  for (int run = 0; run < 20; ++run) {
    one_day.push_back(run_at(run, run < 10 ? 4 : 3, "580"));
    one_day.back().pairs[0].started_utc = "2026-01-10T10:" + std::to_string(10 + run) + ":00Z";
  }
  const Series of_a_day = history(one_day).at(1);
  EXPECT_EQ(of_a_day.days, 1u);
  EXPECT_TRUE(of_a_day.steps.empty());
}

VariantResult timed(const char* name, VariantRole role, double median_ms) {
  VariantResult variant{.name = name, .role = role};
  variant.timing.emplace().summary.median = median_ms;
  for (int i = 0; i < 30; ++i) variant.timing->raw_times_ms.push_back(median_ms * (1 + 0.001 * (i % 5 - 2)));
  variant.memory.device_peak_bytes = 1 << 20;
  variant.metrics = {
      {.name = "energy", .unit = "J", .better = Direction::lower, .summary = {.median = median_ms}, .raw = {}},
      {.name = "rate", .unit = "tokens/s", .better = Direction::higher, .summary = {.median = 1 / median_ms}, .raw = {}}};
  return variant;
}

RunRecord compared(double median_ms, int clock_mhz) {
  RunRecord run;
  run.folder = "run";
  run.manifest.commit = std::to_string(clock_mhz);
  PairResult pair{.target = "ch03:x", .chapter = "ch03", .name = "x", .source_digest = "abc", .device = Device::host};
  pair.variants = {timed("b", VariantRole::baseline, 2), timed("v", VariantRole::optimized, median_ms)};
  pair.gpu_states = {{.sm_clock_mhz = clock_mhz}};
  run.pairs = {pair};
  return run;
}

const MetricChange& metric(const RunComparison& comparison, const std::string& variant, const std::string& name) {
  for (const MetricChange& change : comparison.metrics)
    if (change.variant == variant && change.metric == name) return change;
  throw std::out_of_range{name};
}

TEST(Comparisons, KnowEachMetricsDirection) {
  const RunComparison comparison = compare_runs(compared(1, 1980), compared(1.2, 1455), 0.05);
  EXPECT_EQ(metric(comparison, "v", "time").change, Change::worse);
  EXPECT_EQ(metric(comparison, "v", "time").detail, "median SM clock 1980 MHz, then 1455 MHz");
  EXPECT_EQ(metric(comparison, "v", "energy").change, Change::worse);
  EXPECT_EQ(metric(comparison, "v", "energy").detail, "single readings");
  EXPECT_EQ(metric(comparison, "v", "rate").change, Change::worse);
  EXPECT_EQ(metric(comparison, "v", "device_peak").change, Change::same);
  EXPECT_EQ(metric(comparison, "b", "time").change, Change::same);
  ASSERT_EQ(comparison.causes.size(), 1u);
  EXPECT_EQ(comparison.causes[0].field, "commit");
  EXPECT_TRUE(comparison.same_hardware);
}

TEST(Comparisons, OfOneRunIsBaselineAgainstOptimized) {
  const RunComparison comparison = compare_variants(compared(1, 1980), 0.05);
  EXPECT_EQ(metric(comparison, "v", "time").change, Change::better);
  EXPECT_EQ(metric(comparison, "v", "rate").change, Change::better);
}

TEST(Comparisons, NameWhatOneSideLacksAndWhatBroke) {
  RunRecord before = compared(1, 1980), after = before;
  PairResult other = before.pairs[0];
  other.target = "ch03:y";
  before.pairs.push_back(other);
  after.pairs[0].status = Status::crashed;
  after.pairs[0].reason = "crashed in verify";
  const RunComparison comparison = compare_runs(before, after, 0.05);
  EXPECT_EQ(comparison.only_before, std::vector<std::string>{"ch03:y"});
  ASSERT_EQ(comparison.statuses.size(), 1u);
  EXPECT_EQ(comparison.statuses[0].after, Status::crashed);
  EXPECT_TRUE(comparison.metrics.empty());
}

}  // namespace
}  // namespace aisp::evidence
