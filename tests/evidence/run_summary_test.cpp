// SPDX-License-Identifier: Apache-2.0
// A run in a few figures, and the ceilings that its results stand on.
#include "evidence/run_summary.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "evidence/ceilings.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {
namespace {

using testing::HasSubstr;

PairResult pair_of(const std::string& target, double speedup) {
  PairResult pair{.target = target, .chapter = target.substr(0, 4), .name = target.substr(5), .lesson = "tiled"};
  pair.started_utc = "2026-11-28T10:00:00Z";
  pair.variants.push_back({.name = "plain", .role = VariantRole::baseline});
  pair.variants.push_back({.name = "tiled", .speedup = Speedup{speedup, speedup, speedup, Verdict::faster}});
  return pair;
}

PairResult skipped(const std::string& target) {
  PairResult pair{.target = target, .chapter = target.substr(0, 4), .name = target.substr(5), .status = Status::skipped};
  pair.started_utc = "2026-11-28T10:00:00Z";
  return pair;
}

void add_floor(PairResult& pair, double percent, CeilingFrom from) {
  pair.variants[1].floor = Floor{.percent = percent, .limiter = "compute (bf16)", .ceiling = "739 TFLOP/s", .ceiling_from = from};
}

TEST(RunSummary, CountsEachOutcomeOnce) {
  PairResult stopped = skipped("ch01:stopped"), waiting = skipped("ch01:waiting");
  stopped.complete = waiting.complete = false;
  waiting.started_utc.clear();
  const SuiteResult suite{.run_id = "nightly", .pairs = {pair_of("ch01:a", 2), skipped("ch02:b"), stopped, waiting}};
  const RunSummary summary = summarize(suite, {.targets = {"ch01:a", "ch02:b", "ch03:never", "ch01:stopped", "ch01:waiting"}});
  EXPECT_EQ(summary.outcomes.selected, 5);
  EXPECT_EQ(summary.outcomes.passed, 1);
  EXPECT_EQ(summary.outcomes.skipped, 1);
  EXPECT_EQ(summary.outcomes.interrupted, 1);
  EXPECT_EQ(summary.outcomes.not_started, 2) << "also one that no file has";
  EXPECT_EQ(summary.chapters.size(), 3u);
  EXPECT_EQ(summary.chapters_tested(), 1);
  EXPECT_EQ(ended_early_text(summary),
            "The run ended early: of 5 selected pairs 1 was interrupted and 2 were not started; aisp run --resume nightly "
            "continues it");
  EXPECT_EQ(ended_early_text(summarize({.pairs = {pair_of("ch01:a", 2)}}, {})), "");
}

TEST(RunSummary, OfARunsLogIsThatOfItsSuite) {
  const Manifest manifest{.run_id = "nightly", .started_utc = "2026-11-28T10:00:00Z", .targets = {"ch01:a", "ch02:b"}};
  SuiteResult suite{.run_id = "nightly", .started_utc = "2026-11-28T10:00:00Z", .pairs = {pair_of("ch01:a", 2)}};
  const RunRecord run{.folder = {}, .manifest = manifest, .pairs = suite.pairs};
  PairResult waiting = skipped("ch02:b");
  waiting.complete = false;
  waiting.started_utc.clear();
  suite.pairs.push_back(waiting);
  EXPECT_EQ(nlohmann::json(summarize(run)), nlohmann::json(summarize(suite, manifest)));
}

TEST(RunSummary, MeansAreGeometric) {
  PairResult host = pair_of("ch02:b", 16);
  host.device = Device::host;
  const RunSummary summary = summarize({.pairs = {pair_of("ch01:a", 1), host}}, {});
  EXPECT_DOUBLE_EQ(summary.speedups.geometric_mean, 4);
  EXPECT_DOUBLE_EQ(summary.gpu_speedups.geometric_mean, 1);
  EXPECT_DOUBLE_EQ(summary.host_speedups.geometric_mean, 16);
  EXPECT_EQ(summary.speedups.best_target, "ch02:b");
  EXPECT_EQ(summary.speedups.worst_target, "ch01:a");
}

TEST(RunSummary, GuessesDoNotCount) {
  std::vector<PairResult> pairs = {pair_of("ch01:a", 2), pair_of("ch01:b", 2), pair_of("ch01:c", 2)};
  add_floor(pairs[0], 95, CeilingFrom::measured);
  add_floor(pairs[1], 95, CeilingFrom::guess);
  add_floor(pairs[2], 50, CeilingFrom::recorded);
  const RunSummary summary = summarize({.pairs = pairs}, {});
  EXPECT_EQ(summary.limit.near, 1);
  EXPECT_EQ(summary.limit.of, 2);
  EXPECT_EQ(summary.limit.guessed, 1);
  EXPECT_THAT(guessed_ceilings_text(summary), HasSubstr("No measured ceiling for bf16: "));
  EXPECT_THAT(guessed_ceilings_text(summary), HasSubstr("aisp peak --refresh"));
  pairs.erase(pairs.begin() + 1);
  EXPECT_EQ(guessed_ceilings_text(summarize({.pairs = pairs}, {})), "");
}

TEST(RunSummary, ALibrarySlowerThanTheBaselineIsNoYardstick) {
  std::vector<PairResult> pairs = {pair_of("ch01:a", 2), pair_of("ch01:b", 2)};
  for (PairResult& pair : pairs) {
    pair.variants[1].library_share = LibraryShare{"library", 100, 99, 101};
    pair.variants.push_back({.name = "library", .role = VariantRole::library, .speedup = Speedup{2, 2, 2, Verdict::faster}});
  }
  pairs[1].variants[2].speedup = Speedup{0.2, 0.2, 0.2, Verdict::slower};
  const RunSummary summary = summarize({.pairs = pairs}, {});
  EXPECT_EQ(summary.library.level, 1);
  EXPECT_EQ(summary.library.of, 1);
  EXPECT_EQ(summary.library.slow_libraries, 1);
}

TEST(RunSummary, TimeGoesOnOverAllPartsOfARun) {
  std::vector<PairResult> pairs = {pair_of("ch01:a", 2), pair_of("ch01:b", 2)};
  pairs[0].wall_s = 5;
  pairs[1].wall_s = 7;
  EXPECT_EQ(wall_s_of(pairs), 12) << "of an older file the time in pairs";
  pairs[0].ended_after_s = 6;
  pairs[1].ended_after_s = 14;
  EXPECT_EQ(wall_s_of(pairs), 14);
  pairs[1].machine = "other";
  EXPECT_EQ(wall_s_of(pairs), 14) << "shards run at once";
}

PairResult guessed_gemm(const std::string& target, double lesson_percent, double library_percent) {
  PairResult pair = pair_of(target, 2);
  pair.ceilings = ResultCeilings{.flops_s = {{"bf16", 739e12}}, .flops_from = {{"bf16", CeilingFrom::guess}}};
  pair.variants.push_back({.name = "cublaslt", .role = VariantRole::library, .speedup = Speedup{3, 3, 3, Verdict::faster}});
  for (std::size_t i = 1; i < 3; ++i) {
    VariantResult& variant = pair.variants[i];
    variant.cost.math = "bf16";
    variant.floor = Floor{.milliseconds = 1,
                          .percent = i == 1 ? lesson_percent : library_percent,
                          .limiter = "compute (bf16)",
                          .ceiling = "739 TFLOP/s",
                          .ceiling_from = CeilingFrom::guess};
  }
  return pair;
}

TEST(GuessedCeilings, AreRaisedToWhatALibraryOfTheRunReached) {
  std::vector<PairResult> pairs = {guessed_gemm("ch09:a", 99, 110), guessed_gemm("ch09:b", 55, 66)};
  EXPECT_EQ(raise_guessed_ceilings(pairs).size(), 2u);
  EXPECT_NEAR(pairs[0].ceilings->flops_s.at("bf16"), 1.1 * 739e12, 1e9);
  EXPECT_NEAR(pairs[0].variants[2].floor->percent, 100, 1e-9);
  EXPECT_NEAR(pairs[0].variants[1].floor->percent, 90, 1e-9);
  EXPECT_NEAR(pairs[1].variants[1].floor->percent, 50, 1e-9) << "in all pairs";
  EXPECT_NEAR(pairs[1].variants[1].floor->milliseconds, 1 / 1.1, 1e-9);
  EXPECT_EQ(pairs[1].variants[1].floor->ceiling, "813 TFLOP/s");
  EXPECT_EQ(pairs[1].variants[1].floor->ceiling_from, CeilingFrom::guess);
  EXPECT_THAT(pairs[1].variants[1].floor->source, HasSubstr("cublaslt in ch09:a"));
}

TEST(GuessedCeilings, StayWhereNoLibraryBeatsThem) {
  std::vector<PairResult> pairs = {guessed_gemm("ch09:a", 120, 98)};
  EXPECT_TRUE(raise_guessed_ceilings(pairs).empty()) << "a variant of the pair's own proves nothing";
  pairs = {guessed_gemm("ch09:a", 90, 110)};
  pairs[0].variants[2].floor->ceiling_from = CeilingFrom::measured;
  pairs[0].ceilings->flops_from.clear();
  pairs[0].variants[1].floor->ceiling_from = CeilingFrom::measured;
  EXPECT_TRUE(raise_guessed_ceilings(pairs).empty()) << "a measured ceiling is what it is";
}

TEST(Results, OfOlderFilesSayWhatTheirSourcesSay) {
  const auto read = [](const std::string& source) {
    nlohmann::json json = guessed_gemm("ch09:a", 90, 98);
    for (nlohmann::json& variant : json["variants"])
      if (variant.contains("floor")) {
        variant["floor"].erase("ceiling_from");
        variant["floor"]["source"] = source;
      }
    for (const char* field : {"memory_from", "flops_from"}) json["ceilings"].erase(field);
    json["ceilings"]["source"] = source;
    return json.get<PairResult>();
  };
  const PairResult measured = read("measured by aisp peak 2026-11-26 (quick)");
  EXPECT_EQ(measured.variants[1].floor->ceiling_from, CeilingFrom::measured);
  EXPECT_EQ(source_of_flops(*measured.ceilings, "bf16"), CeilingFrom::measured);
  for (const char* source : {"provisional: parts of the chip's theoretical peaks",
                             "measured by aisp peak 2026-11-26; what it could not measure: provisional: recorded on an H100"}) {
    const PairResult provisional = read(source);
    EXPECT_EQ(provisional.variants[1].floor->ceiling_from, CeilingFrom::guess) << source;
    EXPECT_EQ(source_of_flops(*provisional.ceilings, "bf16"), CeilingFrom::guess) << source;
  }
}

TEST(Results, OfOlderFilesHaveDriftAmongTheirWarnings) {
  nlohmann::json json = pair_of("ch09:a", 2);
  json.erase("notes");
  json["warnings"] = {"GPU 0 is hot",
                      "samples resemble those just before them (autocorrelation above 0.2): tiled (0.52), half (0.71); something "
                      "changed slowly while they were taken"};
  const PairResult pair = json.get<PairResult>();
  EXPECT_THAT(pair.warnings, testing::ElementsAre("GPU 0 is hot"));
  EXPECT_THAT(pair.notes, testing::ElementsAre(drift_note(0.71)));
}

}  // namespace
}  // namespace aisp::evidence
