// SPDX-License-Identifier: Apache-2.0
// The first screen of the HTML report.
#include <gmock/gmock.h>

#include "opened_page.hpp"
#include "report/html/html.hpp"
#include "report/html/text.hpp"
#include "report/run_end.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::VariantResult;
using testing::HasSubstr;
using testing::Not;

// A pair whose lesson is its best variant, with a bound and a library.
PairResult pair_of(int number, double speedup) {
  PairResult pair = sample::passed_pair();
  pair.name = "pair_" + std::to_string(number);
  pair.target = "ch07:" + pair.name;
  pair.lesson = pair.best = "tiled";
  pair.variants[1].speedup = evidence::Speedup{speedup, speedup * 0.99, speedup * 1.01, evidence::Verdict::faster};
  pair.variants[1].timing->summary.median = pair.variants[0].timing->summary.median / speedup;
  pair.variants[2].speedup.reset();
  return pair;
}

HtmlReport report_of(std::vector<PairResult> pairs) {
  HtmlReport report;
  report.run.manifest = sample::manifest();
  report.run.pairs = std::move(pairs);
  for (const PairResult& pair : report.run.pairs) report.run.manifest.targets.push_back(pair.target);
  return report;
}

std::string sentence_of(const HtmlReport& report) { return summary_sentence(report.run, evidence::summarize(report.run)); }

std::string first_screen(const HtmlReport& report) {
  const std::string page = html_report(report);
  const std::size_t begin = page.find("<header");
  return page.substr(begin, page.find("</header>") - begin);
}

TEST(Overview, ASentenceThatCanBePassedOn) {
  HtmlReport report = report_of({pair_of(1, 2), pair_of(2, 3), pair_of(3, 8)});
  EXPECT_EQ(
      sentence_of(report),
      "3 of 3 pairs became faster on one NVIDIA H200, half of them 3.00x or more; the best variant is level with a vendor's "
      "library or ahead in 3 of 3; every result was checked against a float64 reference.");
  report.run.pairs[2].variants[1].speedup->verdict = evidence::Verdict::slower;
  report.run.pairs.push_back(sample::ended_pair("wrong", evidence::Status::failed, "wrong"));
  report.run.pairs.push_back(sample::ended_pair("many", evidence::Status::skipped, "needs 2 GPUs, 1 visible"));
  report.run.manifest.targets = {"ch07:pair_1", "ch07:pair_2", "ch07:pair_3", "ch10:wrong", "ch10:many", "ch11:late"};
  EXPECT_THAT(sentence_of(report), HasSubstr("2 of 3 pairs became faster"));
  EXPECT_THAT(sentence_of(report),
              HasSubstr("; 3 pairs have no result: 1 failed, 1 not started, 1 skipped (needs 2 GPUs, 1 visible)."));
  EXPECT_THAT(first_screen(report), HasSubstr("class=\"answer\">2 of 3 pairs became faster"));
  EXPECT_THAT(first_screen(report), HasSubstr("class=\"banner\">The run ended early"));
  EXPECT_THAT(sentence_of(report_of({pair_of(1, 2)})), HasSubstr("ch07:pair_1 became 2.00x as fast on one NVIDIA H200; "));
  EXPECT_EQ(sentence_of(report_of({})), "No pair was measured on one NVIDIA H200.");
}

// The baseline takes 4.2 ms and the lower bound is 0.505 ms: 2.00x have gone 2.1 of 3.695 ms.
TEST(Overview, FourTiles) {
  const HtmlReport report = report_of({pair_of(1, 2), pair_of(2, 2), pair_of(3, 8)});
  const std::string screen = first_screen(report);
  EXPECT_THAT(screen, HasSubstr("<strong>3.17x</strong><span>geometric mean of the lessons' speedups of 3 GPU pairs"));
  EXPECT_THAT(screen, HasSubstr("<strong>57\u00a0%</strong><span>of the gap between baseline and the machine's limit closed"));
  EXPECT_THAT(screen, HasSubstr("<strong>3 of 3</strong><span>reach 90\u00a0% of the machine's limit"));
  EXPECT_THAT(screen, HasSubstr("<strong>3 of 3</strong><span>level with the library or ahead"));
}

TEST(Overview, AGuessedCeilingIsNotCountedAndSaysSo) {
  HtmlReport report = report_of({pair_of(1, 2), pair_of(2, 4)});
  for (PairResult& pair : report.run.pairs) pair.variants[1].floor->ceiling_from = evidence::CeilingFrom::guess;
  const std::string screen = first_screen(report);
  EXPECT_THAT(screen, Not(HasSubstr("closed by the lesson")));
  EXPECT_THAT(screen, Not(HasSubstr("of the machine's limit")));
  EXPECT_THAT(screen, HasSubstr(">~57\u00a0%<"));
  EXPECT_THAT(screen, HasSubstr("aisp peak --refresh"));
}

TEST(Overview, FivePairsOfEachEndByName) {
  std::vector<PairResult> pairs;
  for (int i = 1; i <= 12; ++i) pairs.push_back(pair_of(i, 1 + i));
  const std::string screen = first_screen(report_of(pairs));
  const std::size_t greatest = screen.find("Greatest speedups"), least = screen.find("Least speedups"),
                    end = screen.find("What next");
  const auto is_in = [&](int number, std::size_t from, std::size_t to) {
    const std::size_t at = screen.find(html::breakable("ch07:pair_" + std::to_string(number)) + "</a>", from);
    return at < to;
  };
  for (int i = 1; i <= 12; ++i) {
    EXPECT_EQ(is_in(i, greatest, least), i > 7) << i;
    EXPECT_EQ(is_in(i, least, end), i <= 5) << i;
  }
  EXPECT_THAT(first_screen(report_of({pair_of(1, 2), pair_of(2, 3)})), HasSubstr("Pairs by speedup"));
}

TEST(Overview, LibrariesThatAreNoYardstickAreFoldedAwayAndNotCounted) {
  std::vector<PairResult> pairs{pair_of(1, 2), pair_of(2, 3), pair_of(3, 4)};
  pairs[1].variants[3].speedup = evidence::Speedup{0.5, 0.49, 0.51, evidence::Verdict::slower};
  pairs[2].variants[3].cost.bytes = 3 * pairs[2].variants[1].cost.bytes;
  const std::string screen = first_screen(report_of(pairs));
  EXPECT_THAT(screen, HasSubstr("<strong>1 of 1</strong><span>level with the library"));
  const std::size_t folded = screen.find("Not counted: 2 pairs");
  ASSERT_NE(folded, std::string::npos);
  const std::string counted = screen.substr(screen.find("beside the library"), folded - screen.find("beside the library"));
  EXPECT_THAT(counted, HasSubstr("ch07:pair_1"));
  EXPECT_THAT(counted, Not(HasSubstr("ch07:pair_2")));
  EXPECT_THAT(screen.substr(folded), HasSubstr("slower than the baseline: 0.500x"));
  EXPECT_THAT(screen.substr(folded), HasSubstr("another algorithm: 3.00x the bytes"));
}

TEST(Overview, SaysWhatToDoNext) {
  HtmlReport report = report_of({pair_of(1, 2)});
  report.run.manifest.run_id = "h1";
  EXPECT_THAT(first_screen(report), HasSubstr("<code>aisp analyze h1</code>"));
  EXPECT_THAT(first_screen(report), HasSubstr("<code>aisp run -t ch07:pair_1 --profile full</code>"));
  EXPECT_THAT(first_screen(report), Not(HasSubstr("--resume")));
}

// No picture, no samples, no source.
TEST(Overview, ABriefPageKeepsEveryVariant) {
  HtmlReport report = report_of({pair_of(1, 2)});
  const std::string all = opened(html_report(report));
  report.is_brief = true;
  const std::string brief = opened(html_report(report));
  EXPECT_LT(brief.size(), all.size());
  for (const char* variant : {"direct", "tiled", "half", "library"})
    EXPECT_THAT(brief, HasSubstr("<td><b>" + std::string{variant} + "</b>"));
  EXPECT_THAT(all, HasSubstr("<h4>Samples</h4>"));
  for (const char* part : {"<h4>Samples</h4>", "<h4>Step by step</h4>", "id=\"roofline\""})
    EXPECT_THAT(brief, Not(HasSubstr(part)));
}

}  // namespace
}  // namespace aisp::report
