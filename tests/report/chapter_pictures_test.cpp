// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/chapter_pictures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace aisp::report {
namespace {

using evidence::Expectations;
using evidence::ExpectedPair;
using evidence::VariantRole;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* place = "chapters/ch07/README.md";

ExpectedPair transpose() {
  ExpectedPair pair{.lesson = "tiled", .baseline = "strided", .baseline_median_ms = 4};
  pair.recorded = {.gpu = "NVIDIA <H200>", .driver = "580"};
  pair.variants["wide"] = {.speedup = 8, .speedup_low = 7.9, .speedup_high = 8.1, .median_ms = 0.5};
  pair.variants["tiled"] = {.speedup = 4, .speedup_low = 3.9, .speedup_high = 4.1, .median_ms = 1};
  pair.variants["copy"] = {.role = VariantRole::control, .speedup = 9, .speedup_low = 9, .speedup_high = 9, .median_ms = 0.44};
  pair.variants["geam"] = {.role = VariantRole::library, .speedup = 5, .speedup_low = 5, .speedup_high = 5, .median_ms = 0.8};
  pair.variants["slow_geam"] = {.role = VariantRole::library, .speedup = 2, .speedup_low = 2, .speedup_high = 2, .median_ms = 2};
  return pair;
}

// `gather` does math and has no library, and nothing of `box` is recorded.
std::vector<Expectations> recorded() {
  const evidence::DeclaredCost cost{.flops = 2e9, .bytes = 1e9, .math = "fp32", .bytes_of = evidence::ByteKind::device_memory};
  ExpectedPair gather{.lesson = "sorted",
                      .ceilings = evidence::Ceilings{.memory_bytes_s = 4e12, .flops_s = {{"fp32", 60e12}}, .source = "measured"},
                      .baseline = "random",
                      .baseline_median_ms = 2,
                      .baseline_cost = cost};
  gather.variants["sorted"] = {.speedup = 2, .speedup_low = 2, .speedup_high = 2, .median_ms = 1, .cost = cost};
  return {{.hardware = "h200", .chapter = "ch07", .pairs = {{"gather", gather}, {"transpose", transpose()}}}};
}

std::vector<KnownPair> known() {
  return {{.chapter = "ch07", .name = "box", .teaches = "", .lesson = "", .steps = {}, .source_digests = {}},
          {.chapter = "ch07",
           .name = "gather",
           .teaches = "",
           .lesson = "sorted",
           .steps = {{"sorted", "random"}},
           .source_digests = {}},
          {.chapter = "ch07",
           .name = "transpose",
           .teaches = "",
           .lesson = "tiled",
           .steps = {{"tiled", "strided", {"slow_geam", "geam"}}, {"wide", "tiled"}},
           .source_digests = {}}};
}

std::string drawn(PictureKind kind, std::vector<std::string> pairs = {}) {
  return chapter_picture({"a.svg", kind, "h200", std::move(pairs)}, "ch07", known(), {recorded(), {}, {}}, place);
}

template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const base::Error& error) {
    return error.what();
  }
  return "none";
}

std::string refused_page(const std::string& page) {
  return refusal([&] { picture_marks(page, place); });
}

TEST(ChapterPictures, ARatioThatIsNotSteadyIsWrittenAsItsRange) {
  std::vector<Expectations> all = recorded();
  all[0].pairs["transpose"].variants["tiled"].speedups = {3, 5};
  const std::string picture =
      chapter_picture({"a.svg", PictureKind::speedups, "h200", {}}, "ch07", known(), {all, {}, {}}, place);
  EXPECT_THAT(picture, HasSubstr(">3.00 to 5.00x<"));
  EXPECT_THAT(picture, HasSubstr(">8.00x (2.00x over tiled)<"));
}

TEST(ChapterPictures, AMarkSaysWhatALinkShows) {
  const auto marks = picture_marks(
      "![a](a.svg)<!-- picture: speedups h200 -->, [b](b.svg)<!-- picture: library h100 x y -->\n"
      "![c](c.svg)<!-- picture: drawn by hand: no evidence -->, [other](../ch01/d.svg), [page](README.md)",
      place);
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_EQ((std::vector{marks[0].file, marks[0].hardware}), (std::vector<std::string>{"a.svg", "h200"}));
  EXPECT_EQ(marks[0].kind, PictureKind::speedups);
  EXPECT_THAT(marks[0].pairs, IsEmpty());
  EXPECT_EQ(marks[1].kind, PictureKind::library);
  EXPECT_THAT(marks[1].pairs, ElementsAre("x", "y"));
  EXPECT_EQ(marks[2].kind, std::nullopt);
}

TEST(ChapterPictures, AMarkMayTakeSeveralLines) {
  const auto marks =
      picture_marks("![a](a.svg)<!-- picture:\nlibrary h100 x\n  y -->, ![b](b.svg)<!-- picture: drawn by\nhand: no -->", place);
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0].kind, PictureKind::library);
  EXPECT_THAT(marks[0].pairs, ElementsAre("x", "y"));
  EXPECT_EQ(marks[1].kind, std::nullopt);
}

TEST(ChapterPictures, ALinkWithoutAMarkIsRefused) {
  EXPECT_THAT(refused_page("![a](a.svg)"), AllOf(HasSubstr(place), HasSubstr("a.svg: no comment behind it")));
  EXPECT_THAT(refused_page("![a](a.svg) <!-- picture: speedups h200 -->"), HasSubstr("no comment"));
  EXPECT_THAT(refused_page("![a](a.svg)<!-- picture: pie h200 -->"), HasSubstr("'pie h200' is no kind"));
  EXPECT_THAT(refused_page("![a](a.svg)<!-- picture: speedups -->"), HasSubstr("'speedups' is no kind"));
  EXPECT_THAT(refused_page("![a](a.svg)<!-- picture: drawn by hand -->"), HasSubstr("is no kind"));
}

TEST(ChapterPictures, SpeedupsOfEveryVariantInTheOrderOfTheSteps) {
  const std::string svg = drawn(PictureKind::speedups);
  EXPECT_THAT(svg, AllOf(HasSubstr("Chapter 7 on h200"), HasSubstr("NVIDIA &lt;H200&gt;"), HasSubstr("1x, 4.00 ms"),
                         HasSubstr("8.00x (2.00x over tiled)"), Not(HasSubstr(">box<"))));
  const std::vector<std::string> names{">gather<", ">random<", ">sorted<", ">transpose<", ">strided<",
                                       ">tiled<",  ">wide<",   ">copy<",   ">geam<"};
  for (std::size_t i = 1; i < names.size(); ++i) EXPECT_LT(svg.find(names[i - 1]), svg.find(names[i])) << names[i];
  EXPECT_LT(svg.find(">geam<"), std::string::npos);
  EXPECT_THAT(drawn(PictureKind::speedups, {"transpose"}), Not(HasSubstr(">gather<")));
}

TEST(ChapterPictures, SharesAreOfTheFastestLibrary) {
  const std::string svg = drawn(PictureKind::library);
  EXPECT_THAT(svg, AllOf(HasSubstr("transpose (100 %: geam)"), HasSubstr(">20 %<"), HasSubstr(">80 %<"), HasSubstr(">160 %<"),
                         Not(HasSubstr("gather"))));
}

TEST(ChapterPictures, IntensitiesStandBesideTheirRidge) {
  const std::string svg = drawn(PictureKind::intensity);
  EXPECT_THAT(svg, AllOf(HasSubstr(">gather<"), HasSubstr("fp32 ridge 15.0"), HasSubstr("random, sorted: 2.0 FLOP/byte"),
                         Not(HasSubstr("transpose"))));
  EXPECT_THAT(drawn(PictureKind::roofline), HasSubstr("ch07:gather"));
}

TEST(ChapterPictures, CountedBytesMoveAPairAlongTheAxis) {
  const auto picture = [](double bytes_of_baseline) {
    const auto counters = [](double bytes) {
      return evidence::Counters{.dram_read_bytes = bytes / 2, .dram_write_bytes = bytes / 2};
    };
    const evidence::Counted counted{.target = "ch07:gather",
                                    .hardware = "h200",
                                    .variants = {{"random", VariantRole::baseline, counters(bytes_of_baseline)},
                                                 {"sorted", VariantRole::optimized, counters(1e9)}}};
    return chapter_picture({"a.svg", PictureKind::intensity, "h200", {}}, "ch07", known(), {recorded(), {}, {counted}}, place);
  };
  EXPECT_THAT(picture(4e9), AllOf(HasSubstr("counted: 0.50 FLOP/byte before, 2.0 after"), HasSubstr("Arrows: ")));
  EXPECT_THAT(picture(1.01e9), AllOf(Not(HasSubstr("counted:")), Not(HasSubstr("Arrows")))) << "alike";
}

TEST(ChapterPictures, SweepsAreDrawnFromTheirOwnRecords) {
  evidence::Sweep sweep{.target = "ch07:transpose", .lesson = "tiled", .bound = evidence::Bound::memory, .hardware = "h200"};
  for (const std::uint64_t n : {64, 128, 256}) {
    evidence::SweptPoint& point = sweep.points.emplace_back();
    point.name = "n_" + std::to_string(n);
    point.sizes = {{"n", n}};
    for (const char* name : {"strided", "tiled"})
      point.variants.push_back({.name = name,
                                .role = point.variants.empty() ? VariantRole::baseline : VariantRole::optimized,
                                .median_ms = 1,
                                .speedup = point.variants.empty() ? std::nullopt : std::optional{2.0},
                                .cost = {.bytes = 1e6 * static_cast<double>(n)}});
  }
  const auto picture = [&](PictureKind kind, std::vector<std::string> pairs) {
    return chapter_picture({"a.svg", kind, "h200", std::move(pairs)}, "ch07", known(), {recorded(), {sweep}, {}}, place);
  };
  EXPECT_THAT(picture(PictureKind::sweep, {"transpose"}),
              AllOf(HasSubstr("ch07:transpose"), HasSubstr("GB/s"), HasSubstr(">256<")));
  EXPECT_THAT(picture(PictureKind::sweep_speedups, {"transpose"}), HasSubstr("speedup over the baseline"));
  EXPECT_THAT(refusal([&] { picture(PictureKind::sweep, {}); }), HasSubstr("a picture of a sweep is of one pair"));
  EXPECT_THAT(refusal([&] { picture(PictureKind::sweep, {"gather"}); }),
              HasSubstr("no sweep of ch07:gather is recorded on h200"));
}

TEST(ChapterPictures, WhatWasNotRecordedIsRefused) {
  EXPECT_THAT(refusal([] {
                drawn(PictureKind::speedups, {"transpose", "box"});
              }),
              AllOf(HasSubstr(place), HasSubstr("ch07:box is not recorded on h200")));
  EXPECT_THAT(refusal([] { drawn(PictureKind::library, {"gather"}); }), HasSubstr("nothing of this kind is recorded"));
  EXPECT_THAT(refusal([] { drawn(PictureKind::roofline, {"transpose"}); }), HasSubstr("no pair declares FLOPs"));
  EXPECT_THAT(refusal([] {
                chapter_picture({"a.svg", PictureKind::speedups, "b200", {}}, "ch07", known(), {recorded(), {}, {}}, place);
              }),
              HasSubstr("nothing of ch07 is recorded on b200"));
}

}  // namespace
}  // namespace aisp::report
