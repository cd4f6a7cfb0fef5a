// SPDX-License-Identifier: Apache-2.0
#include "report/markdown/markdown.hpp"

#include <gmock/gmock.h>

#include "report/pictures/sweep_picture.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

evidence::PairResult gemm(const char* name, double ms) {
  evidence::PairResult pair = sample::passed_pair();
  pair.target = "ch10:gemm";
  pair.sweep_case = name;
  pair.sizes = {{"m", 4096}, {"n", 256}};
  pair.sizes_set = true;
  pair.lesson = pair.best = "tiled";
  pair.variants = {sample::variant("plain", evidence::VariantRole::baseline, 4 * ms),
                   sample::variant("tiled", evidence::VariantRole::optimized, ms),
                   sample::variant("cublas", evidence::VariantRole::library, 1.1 * ms)};
  for (evidence::VariantResult& variant : pair.variants) variant.cost = {.flops = 1e12, .bytes = 1e9, .math = "bf16"};
  pair.variants[1].speedup = evidence::Speedup{4, 3.9, 4.1, evidence::Verdict::faster};
  return pair;
}

TEST(Sweep, HasARowForEachCaseAndVariant) {
  evidence::PairResult failed = gemm("huge", 1);
  failed.status = evidence::Status::failed;
  failed.reason = "out of memory";
  failed.variants.clear();
  const std::vector<SweepTable> tables = sweep_tables({gemm("small", 1), sample::passed_pair(), gemm("wide", 2), failed});
  ASSERT_EQ(tables.size(), 1u);
  const Rows& rows = tables[0].rows;
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_THAT(rows[0], ElementsAre("case", "sizes", "variant", "median", "rate", "speedup", "of cublas"));
  EXPECT_THAT(rows[2], ElementsAre("small", "m=4096, n=256", "tiled (lesson, best)", "1.00 ms", "1.00 PFLOP/s",
                                   "4.00x [3.90, 4.10]", "1.10x"));
  EXPECT_THAT(rows[3], ElementsAre("small", "m=4096, n=256", "cublas (library)", "1.10 ms", "909 TFLOP/s", "-", "-"));
  EXPECT_THAT(rows[5][4], "500 TFLOP/s");
  EXPECT_THAT(rows[7], ElementsAre("huge", "m=4096, n=256", "failed: out of memory", "", "", "", ""));
}

TEST(Sweep, IsNothingInOtherRuns) {
  EXPECT_TRUE(sweep_tables(sample::suite().pairs).empty());
  EXPECT_EQ(sweep_markdown(sample::suite()), "");
  EXPECT_THAT(sweep_markdown({.pairs = {gemm("small", 1)}}), HasSubstr("## Sweep of ch10:gemm"));
}

evidence::Sweep curve(std::initializer_list<std::uint64_t> values) {
  std::vector<evidence::PairResult> pairs;
  for (const std::uint64_t n : values) {
    pairs.push_back(gemm(("n_" + std::to_string(n)).c_str(), static_cast<double>(n)));
    pairs.back().sizes["n"] = n;
    for (evidence::VariantResult& variant : pairs.back().variants)
      variant.floor = evidence::Floor{.milliseconds = 0.5 * static_cast<double>(n), .percent = 50, .limiter = "compute (bf16)"};
  }
  evidence::Sweep sweep = evidence::sweeps_of(pairs).at(0);
  sweep.bound = evidence::Bound::compute;
  return sweep;
}

TEST(SweepCharts, HaveOneLineAVariantOverTheSizeAndWhatTheMachineAllows) {
  const auto charts = sweep_charts(curve({1, 2, 4, 8}), SweepQuantity::rate);
  ASSERT_EQ(charts.size(), 1u);
  const LineChart& chart = charts[0];
  EXPECT_EQ(chart.x_title, "n");
  EXPECT_EQ(chart.y_title, "TFLOP/s");
  EXPECT_TRUE(chart.logarithmic_x);
  EXPECT_THAT(chart.x_ticks, ElementsAre(1, 2, 4, 8));
  ASSERT_EQ(chart.series.size(), 4u);
  EXPECT_EQ(chart.series[1].name, "tiled (lesson)");
  EXPECT_DOUBLE_EQ(chart.series[1].points[1].y, 500);
  EXPECT_TRUE(chart.series[3].is_ceiling);
  EXPECT_DOUBLE_EQ(chart.series[3].points[1].y, 1000) << "twice the lesson";
}

TEST(SweepCharts, OfSpeedupsHaveNoCeiling) {
  const auto charts = sweep_charts(curve({32, 36, 40}), SweepQuantity::speedup);
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_FALSE(charts[0].logarithmic_x);
  ASSERT_EQ(charts[0].series.size(), 2u) << "nothing may be claimed of the library";
  EXPECT_DOUBLE_EQ(charts[0].series[0].points[0].y, 1);
  EXPECT_DOUBLE_EQ(charts[0].series[1].points[0].y, 4);
}

TEST(SweepCharts, OfAFamilyAreOneForEachOfItsCurves) {
  evidence::Sweep family = curve({1, 2, 4});
  const std::size_t own = family.points.size();
  for (std::size_t i = 0; i < own; ++i) {
    family.points.push_back(family.points[i]);
    family.points.back().sizes["m"] = 8192;
  }
  const auto charts = sweep_charts(family, SweepQuantity::time);
  ASSERT_EQ(charts.size(), 2u);
  EXPECT_THAT(charts[0].y_title, HasSubstr("m=4096"));
  EXPECT_THAT(charts[1].y_title, HasSubstr("m=8192"));
}

TEST(SweepCharts, PointsThatFormNoCurveStandSideBySide) {
  evidence::Sweep shapes = curve({1, 2, 4});
  shapes.points[0].sizes["m"] = 64;
  shapes.points[1].sizes["m"] = 4;
  shapes.points[2].sizes["m"] = 1024;
  const auto charts = sweep_charts(shapes, SweepQuantity::rate);
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_THAT(charts[0].x_names, ElementsAre("n_1", "n_2", "n_4"));
  for (const LineSeries& series : charts[0].series) EXPECT_FALSE(series.is_joined);
  EXPECT_THAT(line_picture(charts[0], 800).body, testing::Not(HasSubstr("polyline")));
}

TEST(SweepCharts, AreOfBytesWhereMemoryIsTheLimit) {
  evidence::Sweep moved = curve({1, 2, 4});
  moved.bound = evidence::Bound::memory;
  EXPECT_EQ(sweep_charts(moved, SweepQuantity::rate).at(0).y_title, "TB/s");
  for (evidence::SweptPoint& point : moved.points)
    for (evidence::SweptVariant& variant : point.variants) variant.cost = {};
  EXPECT_TRUE(sweep_charts(moved, SweepQuantity::rate).empty());
  EXPECT_THAT(sweep_svg(moved, SweepQuantity::rate, 800), HasSubstr("median")) << "times, where no work is declared";
}

TEST(SweepCharts, NameTheSizesBelowTheAxisWithoutTouching) {
  LineChart chart{.x_ticks = {}};
  chart.series.push_back({"a", {}});
  for (int i = 0; i < 200; ++i) {
    chart.x_ticks.push_back(1000000 + i);
    chart.series[0].points.push_back({1000000.0 + i, 1, ""});
  }
  const std::string body = line_picture(chart, 350).body;
  EXPECT_THAT(body, testing::AllOf(HasSubstr(">1000000<"), HasSubstr(">1000199<")));
  std::size_t ticks = 0;
  for (std::size_t at = body.find(">1000"); at != std::string::npos; at = body.find(">1000", at + 1)) ++ticks;
  EXPECT_LE(ticks, 5u);
}

TEST(SweepCharts, LabelsOfMarksDoNotTouch) {
  LineChart chart{.x_ticks = {}};
  chart.series.push_back({"a", {{1, 1, ""}, {1000, 1, ""}}});
  chart.marks = {{10, "first step"}, {14, "second step"}, {400, "third step"}};
  const std::string body = line_picture(chart, 800).body;
  std::vector<std::string> heights;
  for (std::size_t at = body.find("class=\"label\""); at != std::string::npos; at = body.find("class=\"label\"", at + 1)) {
    const std::size_t y = body.find(" y=\"", at) + 4;
    heights.push_back(body.substr(y, body.find('"', y) - y));
  }
  ASSERT_EQ(heights.size(), 3u);
  EXPECT_NE(heights[0], heights[1]);
  EXPECT_EQ(heights[0], heights[2]);
}

TEST(SweepSummary, IsARowAPointInTheOrderOfTheCurve) {
  evidence::Sweep sweep = curve({4, 1, 2});
  sweep.points[2].variants.clear();
  const Rows rows = sweep_summary(sweep);
  EXPECT_THAT(rows, ElementsAre(ElementsAre("n", "plain", "tiled", "cublas", "speedup", "of ceiling"),
                                ElementsAre("1", "4.00 ms", "1.00 ms", "1.10 ms", "4.00x", "50 %"),
                                ElementsAre("2", "-", "-", "-", "-", "-"),
                                ElementsAre("4", "16.0 ms", "4.00 ms", "4.40 ms", "4.00x", "50 %")));
}

}  // namespace
}  // namespace aisp::report
