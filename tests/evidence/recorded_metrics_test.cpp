// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/expectations/expectations.hpp"

namespace aisp::evidence {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

Metric metric(const char* name, double median, const char* unit, Direction better = Direction::higher) {
  Metric result{.name = name, .unit = unit, .better = better};
  result.summary.median = median;
  return result;
}

VariantResult variant(const char* name, VariantRole role, double speedup, std::vector<Metric> metrics) {
  VariantResult result{.name = name, .role = role};
  result.timing.emplace().summary.median = 1;
  if (speedup > 0) result.speedup = Speedup{speedup, speedup * 0.99, speedup * 1.01, Verdict::faster};
  result.metrics = std::move(metrics);
  return result;
}

PairResult decoding(double dense, double split) {
  PairResult pair{.target = "ch19:decode", .chapter = "ch19", .name = "decode", .source_digest = "abc", .device = Device::gpu};
  pair.gpus = {"GPU-1"};
  pair.variants = {
      variant("dense", VariantRole::baseline, 0, {metric("tokens", dense, "tokens/s")}),
      variant("split_k", VariantRole::optimized, 2,
              {metric("tokens", split, "tokens/s"), metric("error", 0.5, "%", Direction::lower)}),
      variant("library", VariantRole::library, 3, {}),
  };
  pair.lesson = "split_k";
  return pair;
}

Manifest recorded_manifest(const std::string& run_id) {
  Manifest manifest{.run_id = run_id, .commit = "1234"};
  manifest.gpus = {{.ordinal = 0, .name = "NVIDIA H200", .uuid = "GPU-1"}};
  return manifest;
}

// Files of one folder, into which runs are recorded.
class RecordedMetricsOfRuns : public testing::Test {
 protected:
  void add(const PairResult& pair, const std::string& run_id = "run") {
    record(folder_.path(), {.pairs = {pair}}, recorded_manifest(run_id));
  }
  std::filesystem::path file() const { return expectations_path(folder_.path(), "h200", "ch19"); }
  std::string text() const { return base::read_file(file()); }
  ExpectedPair read() const { return read_expectations(file())->pairs.at("decode"); }
  // Why the file is refused with `what` replaced.
  std::string refusal(const std::string& what, const std::string& by) const {
    std::string changed = text();
    const std::size_t at = changed.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    try {
      parse_expectations(changed.replace(at, what.size(), by), "ch19.json");
    } catch (const base::Error& error) {
      return error.what();
    }
    return {};
  }

 private:
  base::ScratchDirectory folder_;
};

TEST_F(RecordedMetricsOfRuns, AreReadBackOfEachVariantAndOfTheBaseline) {
  add(decoding(1.5e6, 3.25e6));
  const ExpectedPair pair = read();
  EXPECT_DOUBLE_EQ(pair.baseline_metrics.at("tokens").value, 1.5e6);
  const RecordedMetrics& split = pair.variants.at("split_k").metrics;
  EXPECT_DOUBLE_EQ(split.at("tokens").value, 3.25e6);
  EXPECT_EQ(split.at("tokens").unit, "tokens/s");
  EXPECT_EQ(split.at("tokens").better, Direction::higher);
  EXPECT_EQ(split.at("error").better, Direction::lower);
  EXPECT_TRUE(pair.variants.at("library").metrics.empty());
}

TEST_F(RecordedMetricsOfRuns, ShowTheMedianOfTheRunsThatHaveThem) {
  PairResult without = decoding(0, 0);
  for (VariantResult& variant : without.variants) variant.metrics.clear();
  add(without, "old");
  add(decoding(1e6, 3e6), "a");
  add(decoding(2e6, 8e6), "b");
  add(decoding(6e6, 4e6), "c");
  const ExpectedPair pair = read();
  ASSERT_EQ(pair.runs.size(), 4u);
  EXPECT_DOUBLE_EQ(pair.baseline_metrics.at("tokens").value, 2e6);
  EXPECT_DOUBLE_EQ(pair.variants.at("split_k").metrics.at("tokens").value, 4e6);
  EXPECT_DOUBLE_EQ(pair.runs[2].variants.at("split_k").metrics.at("tokens").value, 8e6) << "every run is kept";
}

TEST_F(RecordedMetricsOfRuns, FilesSayNothingWhereNothingWasReported) {
  PairResult pair = decoding(0, 0);
  for (VariantResult& variant : pair.variants) variant.metrics.clear();
  add(pair);
  EXPECT_THAT(text(), testing::Not(HasSubstr("metrics")));
}

TEST_F(RecordedMetricsOfRuns, WhatIsNoNumberIsNotRecorded) {
  add(decoding(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()));
  const ExpectedPair pair = read();
  EXPECT_TRUE(pair.baseline_metrics.empty());
  EXPECT_THAT(pair.variants.at("split_k").metrics, ElementsAre(Key("error"))) << "the others are";
}

TEST_F(RecordedMetricsOfRuns, FilesWithoutNumbersAreRefusedWithTheirPlace) {
  add(decoding(1.5e6, 3.25e6));
  EXPECT_EQ(refusal("1500000.0", "1600000.0"), "");
  EXPECT_EQ(refusal("\"better\": \"higher\"", "\"better\": \"higher\", \"samples\": 7"), "") << "of a later aisp";
  EXPECT_THAT(refusal("1500000.0", "null"), HasSubstr("pairs.decode.runs[0].baseline_metrics.tokens: no number"));
  EXPECT_THAT(refusal("3250000.0", "null"), HasSubstr("runs[0].variants.split_k.metrics.tokens: no number"));
  EXPECT_THAT(refusal("\"value\": 3250000.0", "\"values\": 3250000.0"), HasSubstr("metrics.tokens: no number"));
  EXPECT_THAT(refusal("3250000.0", "\"many\""), HasSubstr("metrics.tokens.value: expected a number"));
  EXPECT_THAT(refusal("\"better\": \"higher\"", "\"better\": \"more\""), HasSubstr("\"more\" is none of lower, higher"));
}

TEST(MetricsToRecord, HaveTheTimesOfTokensUnlessThePairReportsThem) {
  VariantResult marked{.name = "paged", .metrics = {metric("tokens_per_second", 7, "own tokens/s")}};
  marked.inference = InferenceTiming{.tokens_per_second = 900};
  marked.inference->ttft_ms.median = 12;
  RecordedMetrics metrics = metrics_to_record({}, marked);
  EXPECT_THAT(metrics, ElementsAre(Key("tokens_per_second"), Key("ttft"))) << "there is no second token";
  EXPECT_EQ(metrics.at("tokens_per_second").unit, "own tokens/s");
  EXPECT_EQ(metrics.at("ttft").value, 12);
  EXPECT_EQ(metrics.at("ttft").unit, "ms");
  EXPECT_EQ(metrics.at("ttft").better, Direction::lower);
  marked.metrics.clear();
  marked.inference->tpot_ms = {.count = 3, .median = 0.5};
  metrics = metrics_to_record({}, marked);
  EXPECT_EQ(metrics.at("tpot").value, 0.5);
  EXPECT_EQ(metrics.at("tokens_per_second").value, 900);
  EXPECT_EQ(metrics.at("tokens_per_second").better, Direction::higher);
}

TEST(MetricsToRecord, TellWhatASpeedupCostsWhereAVariantChangesThePrecision) {
  PairResult pair = decoding(1, 2);
  pair.variants[0].accuracy = Accuracy{.relative_l2 = 0.002};
  pair.variants[1].accuracy = Accuracy{.relative_l2 = 0.003, .unquantized_l2 = 0.025};
  EXPECT_FALSE(metrics_to_record(pair, pair.variants[1]).contains("relative_l2_error")) << "all are as precise as the reference";
  pair.narrow_types = true;
  EXPECT_DOUBLE_EQ(metrics_to_record(pair, pair.variants[0]).at("relative_l2_error").value, 0.2) << "what its inputs cannot tell";
  pair.narrow_types = false;
  pair.variants[1].changes_precision = true;
  EXPECT_DOUBLE_EQ(metrics_to_record(pair, pair.variants[0]).at("relative_l2_error").value, 0.2);
  EXPECT_DOUBLE_EQ(metrics_to_record(pair, pair.variants[1]).at("relative_l2_error").value, 2.5);
  EXPECT_FALSE(metrics_to_record(pair, pair.variants[2]).contains("relative_l2_error")) << "it was not verified";
}

TEST(BestVariant, IsTheFastestOptimizedOneAndOfEquallyFastOnesTheLesson) {
  ExpectedPair pair{.lesson = "lesson"};
  EXPECT_EQ(best_variant(pair), "");
  pair.variants["early"].speedup = 3;
  pair.variants["lesson"].speedup = 3;
  pair.variants["other"].speedup = 3;
  pair.variants["library"] = {.role = VariantRole::library, .speedup = 9};
  pair.variants["empty"] = {.role = VariantRole::control, .speedup = 9};
  EXPECT_EQ(best_variant(pair), "lesson");
  pair.variants["other"].speedup = 4;
  EXPECT_EQ(best_variant(pair), "other");
}

}  // namespace
}  // namespace aisp::evidence
