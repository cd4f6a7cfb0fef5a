// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/roofline.hpp"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <algorithm>

#include "report/pictures/plot.hpp"

namespace aisp::report {
namespace {

using evidence::ByteKind;
using evidence::DeclaredCost;
using evidence::Expectations;
using evidence::ExpectedPair;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double bandwidth_bytes_s = 4e12, fp32_flops_s = 50e12, bf16_flops_s = 800e12;

// A baseline of 4 ms and a variant of 1 ms, both of this cost.
ExpectedPair pair_of(const DeclaredCost& cost, const std::string& date = "2026-01-02T00:00:00Z") {
  ExpectedPair pair{
      .source_digest = "abc", .lesson = "tiled", .baseline = "plain", .baseline_median_ms = 4, .baseline_cost = cost};
  pair.recorded.date_utc = date;
  pair.recorded.gpu = "NVIDIA H200";
  pair.ceilings = evidence::ResultCeilings{.memory_bytes_s = bandwidth_bytes_s, .source = "measured"};
  if (cost.math == "fp32") pair.ceilings->flops_s["fp32"] = fp32_flops_s;
  if (cost.math == "bf16") pair.ceilings->flops_s["bf16"] = bf16_flops_s;
  pair.variants["tiled"] = {.speedup = 4, .speedup_low = 3.9, .speedup_high = 4.1, .median_ms = 1, .cost = cost};
  return pair;
}

const DeclaredCost streaming{.flops = 1e9, .bytes = 2e9, .math = "fp32", .bytes_of = ByteKind::device_memory};
const DeclaredCost dense{.flops = 600e9, .bytes = 1e8, .math = "bf16", .bytes_of = ByteKind::device_memory};
const DeclaredCost bytes_only{.bytes = 2e9, .bytes_of = ByteKind::device_memory};

std::vector<Roofline> of(std::map<std::string, ExpectedPair> pairs) {
  return rooflines({Expectations{.hardware = "h200", .chapter = "ch01", .pairs = std::move(pairs)}}, {}, {});
}

TEST(Roofline, RatesAndTheNearerRoof) {
  const Roofline roofline =
      of({{"dense", pair_of(dense)}, {"streaming", pair_of(streaming)}, {"copy", pair_of(bytes_only)}}).at(0);
  const auto rows = roofline_rows(roofline);
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_THAT(rows[2], ElementsAre("ch01:copy", "tiled (lesson)", "1.00 ms", "-", "-", "2.00 TB/s", "50.0 %", "memory"));
  EXPECT_THAT(rows[4], ElementsAre("ch01:dense", "tiled (lesson)", "1.00 ms", "6000", "600 TFLOP/s", "100 GB/s", "75.0 %",
                                   "compute (bf16)"));
  EXPECT_THAT(rows[5], ElementsAre("ch01:streaming", "plain (baseline)", "4.00 ms", "0.500", "250 GFLOP/s", "500 GB/s", "12.5 %",
                                   "memory"));
  EXPECT_EQ(roofline.drawn(), 2u);
  EXPECT_THAT(left_out_text(roofline), HasSubstr("1 pair "));
}

TEST(Roofline, OfARunHasTheSharesOfItsResults) {
  evidence::PairResult pair{.target = "ch01:copy"};
  pair.variants.push_back({.name = "tiled", .floor = evidence::Floor{.percent = 77, .limiter = "memory"}});
  std::vector<Roofline> all = of({{"copy", pair_of(bytes_only)}, {"dense", pair_of(dense)}});
  take_floors(all, {&pair, 1});
  EXPECT_EQ(roofline_rows(all[0])[2][6], "77.0 %");
  EXPECT_EQ(roofline_rows(all[0])[1][6], "12.5 %") << "the baseline's result has none";
  pair.variants[0].floor->limiter = "launch";
  take_floors(all, {&pair, 1});
  EXPECT_EQ(roofline_rows(all[0])[2][6], "50.0 %") << "a lower bound of another kind is of no roof";
}

TEST(Roofline, MarksGuesses) {
  ExpectedPair pair = pair_of(dense);
  pair.ceilings->flops_from["bf16"] = evidence::CeilingFrom::guess;
  const Roofline roofline = of({{"dense", pair}, {"streaming", pair_of(streaming)}}).at(0);
  EXPECT_EQ(roofline_rows(roofline)[2][6], "~75.0 %");
  EXPECT_THAT(ceilings_text(roofline.ceilings), HasSubstr("memory 4.00 TB/s, bf16 ~800 TFLOP/s, fp32 50.0 TFLOP/s"));
  EXPECT_THAT(roofline_svg(roofline), HasSubstr(">bf16 ~800 TFLOP/s<"));
  const auto summary = roofline_summary(roofline);
  ASSERT_EQ(summary.size(), 2u) << "what stands on a guess does not count";
  EXPECT_THAT(summary[1], ElementsAre("memory", "1", "0", "50.0 %", "ch01:streaming tiled (50.0 %)"));
}

TEST(Roofline, AMeasuredCeilingIsBetterThanAHigherGuess) {
  ExpectedPair guessed = pair_of(dense);
  guessed.ceilings->flops_s["bf16"] = 2 * bf16_flops_s;
  guessed.ceilings->flops_from["bf16"] = evidence::CeilingFrom::guess;
  const Roofline roofline = of({{"a", guessed}, {"b", pair_of(dense)}}).at(0);
  EXPECT_EQ(roofline.ceilings.flops_s.at("bf16"), bf16_flops_s);
  EXPECT_TRUE(roofline.ceilings.flops_from.empty());
}

TEST(Roofline, CasesOfASweepAreJoinedByACurve) {
  const DeclaredCost larger{.flops = 1200e9, .bytes = 1e8, .math = "bf16", .bytes_of = ByteKind::device_memory};
  const std::string alone = roofline_svg(of({{"gemm", pair_of(dense)}, {"other", pair_of(larger)}}).at(0));
  EXPECT_THAT(alone, Not(HasSubstr("<polyline")));
  const std::string swept = roofline_svg(of({{"gemm small", pair_of(dense)}, {"gemm wide", pair_of(larger)}}).at(0));
  EXPECT_THAT(swept, HasSubstr("<title>ch01:gemm plain</title>"));
  EXPECT_THAT(swept, HasSubstr("<title>ch01:gemm tiled</title>"));
}

TEST(Roofline, TheHighestCeilingsOfAllRecords) {
  for (const double factor : {0.75, 1.25}) {
    ExpectedPair old = pair_of(streaming, "2025-01-01T00:00:00Z");
    old.ceilings->memory_bytes_s = factor * bandwidth_bytes_s;
    const Roofline roofline = of({{"a_old", old}, {"b_new", pair_of(streaming)}}).at(0);
    EXPECT_EQ(roofline.ceilings.memory_bytes_s, std::max(factor, 1.0) * bandwidth_bytes_s);
    EXPECT_TRUE(roofline.ceilings_differ);
  }
  EXPECT_FALSE(of({{"b_new", pair_of(streaming)}}).at(0).ceilings_differ);
}

TEST(Roofline, RidgesLieWhereTheRoofsMeet) {
  EXPECT_EQ(ridges_text(of({{"dense", pair_of(dense)}, {"streaming", pair_of(streaming)}}).at(0).ceilings),
            "bf16 200, fp32 12.5 FLOP/byte; memory limits below, arithmetic above");
  EXPECT_EQ(ridges_text({.flops_s = {{"bf16", 8e14}}}), "");
  EXPECT_EQ(ridges_text({.memory_bytes_s = 4e12}), "");
  EXPECT_THAT(roofline_svg(of({{"dense", pair_of(dense)}}).at(0)), HasSubstr("Ridge points: bf16 200 FLOP/byte"));
}

TEST(Roofline, ChaptersAndKindsOfHardwareAreKeptApart) {
  const std::vector<Expectations> all{
      {.hardware = "h200", .chapter = "ch01", .pairs = {{"a", pair_of(dense)}}},
      {.hardware = "h200", .chapter = "ch02", .pairs = {{"b", pair_of(dense)}}},
      {.hardware = "host", .chapter = "ch01", .pairs = {{"c", pair_of(bytes_only)}}},
  };
  EXPECT_EQ(rooflines(all, {}, {}).size(), 2u);
  const auto chosen = rooflines(all, {}, {"ch02"});
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(chosen[0].pairs.at(0).target, "ch02:b");
}

TEST(Roofline, StaleWhenTheCodeIsAnother) {
  const std::vector<Expectations> all{{.hardware = "h200", .chapter = "ch01", .pairs = {{"a", pair_of(dense)}}}};
  EXPECT_FALSE(rooflines(all, {{"ch01:a", {"abc"}}}, {})[0].pairs[0].stale);
  const Roofline stale = rooflines(all, {{"ch01:a", {"def"}}}, {})[0];
  EXPECT_TRUE(stale.pairs[0].stale);
  EXPECT_THAT(roofline_svg(stale), HasSubstr("ch01:a (stale)"));
}

TEST(RooflineSvg, DrawsTheRoofsOfWhatItShows) {
  const std::string svg = roofline_svg(of({{"streaming", pair_of(streaming)}, {"copy", pair_of(bytes_only)}}).at(0));
  EXPECT_THAT(svg, HasSubstr(">fp32 50.0 TFLOP/s<"));
  EXPECT_THAT(svg, HasSubstr(">memory 4.00 TB/s<"));
  EXPECT_THAT(svg, HasSubstr("ch01:streaming tiled: 0.500 FLOP/byte"));
  EXPECT_THAT(svg, HasSubstr("1 pair without FLOPs"));
  EXPECT_THAT(svg, Not(HasSubstr("ch01:copy")));
}

TEST(RooflineSvg, HostileNumbersAndTextStayHarmless) {
  ExpectedPair odd = pair_of({.flops = 1e308, .bytes = 1e-308, .math = "<script>\x01&", .bytes_of = ByteKind::device_memory});
  ExpectedPair tiny = pair_of(streaming);
  tiny.baseline_median_ms = 1e300;
  tiny.variants["tiled"].median_ms = 1e-200;
  tiny.recorded.cpu = tiny.recorded.gpu = "<b>\x02\"";
  ExpectedPair zero = pair_of(streaming);
  zero.variants["tiled"].median_ms = 0;
  const std::string svg = roofline_svg(of({{"odd", odd}, {"tiny", tiny}, {"zero", zero}}).at(0));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_EQ(svg.find_first_of("\x01\x02"), std::string::npos);
  EXPECT_LT(svg.size(), 100'000u);
}

TEST(LabelPlaces, NoneCoversAnotherEvenForPointsInOnePlace) {
  const Box area{0, 0, 1000, 500};
  LabelPlaces places{area};
  std::vector<Box> found;
  for (int i = 0; i < 60; ++i) {
    const auto box = places.place(500 + i % 3, 250, 100, 15);
    ASSERT_TRUE(box) << i;
    EXPECT_TRUE(box->x >= 0 && box->y >= 0 && box->x + 100 <= 1000 && box->y + 15 <= 500);
    for (const Box& other : found) EXPECT_FALSE(overlap(*box, other));
    found.push_back(*box);
  }
}

TEST(LabelPlaces, AvoidsLinesAndSaysWhenFull) {
  LabelPlaces places{{0, 0, 300, 100}};
  places.avoid({0, 50, 300, 50});
  const auto box = places.place(150, 50, 80, 14);
  ASSERT_TRUE(box);
  EXPECT_FALSE(crosses({0, 50, 300, 50}, *box));
  EXPECT_FALSE(LabelPlaces({0, 0, 50, 50}).place(25, 25, 80, 14));
}

}  // namespace
}  // namespace aisp::report
