// SPDX-License-Identifier: Apache-2.0
// Reports byte for byte. After a change that is meant: AISP_UPDATE_GOLDEN=1 writes the files anew; read the difference.
#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/system/files.hpp"
#include "evidence/json.hpp"
#include "evidence/run_summary.hpp"
#include "places.hpp"
#include "report/artifacts.hpp"
#include "report/console.hpp"
#include "report/markdown/markdown.hpp"
#include "report/run_end.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = source_folder() / "tests/report/golden" / name;
  if (std::getenv("AISP_UPDATE_GOLDEN") != nullptr) base::write_atomically(path, text);
  EXPECT_EQ(text, base::read_file(path)) << "differs from " << path;
}

std::string console_text(bool colour) {
  std::string text;
  const base::Painter paint{colour};
  for (const auto& pair : sample::suite().pairs) text += pair_line(pair, paint) + "\n" + pair_details(pair);
  return text + summary(sample::suite(), sample::manifest(), paint);
}

TEST(Golden, Console) { expect_golden("console.txt", console_text(false)); }
TEST(Golden, SuiteMarkdown) { expect_golden("suite.md", suite_markdown(sample::suite(), sample::manifest())); }
TEST(Golden, PairMarkdown) { expect_golden("pair.md", pair_markdown(sample::passed_pair())); }
TEST(Golden, Csv) { expect_golden("results.csv", suite_csv(sample::suite(), sample::manifest())); }
TEST(Golden, Json) { expect_golden("suite.json", evidence::suite_json(sample::suite(), sample::manifest()).dump(2) + "\n"); }

TEST(Console, ColourOnlyWhenAsked) {
  EXPECT_EQ(console_text(false).find('\x1b'), std::string::npos);
  EXPECT_NE(console_text(true).find('\x1b'), std::string::npos);
}

// As of a host pair without a library: nothing says how near its time is to what.
TEST(Console, ALineGoesOnBehindItsVerdictWhereNothingElseIsKnown) {
  evidence::PairResult pair = sample::passed_pair();
  evidence::VariantResult& half = pair.variants[2];
  half.speedup->verdict = evidence::Verdict::faster;
  half.changes_precision = false;
  half.library_share.reset();
  EXPECT_THAT(pair_line(pair, base::Painter{}), testing::HasSubstr("  faster; best 7.72x by tiled"));
  pair.variants.erase(pair.variants.begin() + 3, pair.variants.end());
  pair.variants.erase(pair.variants.begin() + 1);
  EXPECT_THAT(pair_line(pair, base::Painter{}), testing::EndsWith("  faster"));
}

std::vector<std::string> reports_of(const evidence::PairResult& pair) {
  evidence::SuiteResult suite;
  suite.pairs = {pair};
  return {suite_markdown(suite, sample::manifest()), pair_markdown(pair), suite_csv(suite, sample::manifest()),
          pair_line(pair, base::Painter{}) + summary(suite, {}, base::Painter{})};
}

TEST(Console, LinesOfARunAgreeInTheirColumnsWhateverTheNames) {
  evidence::PairResult longer = sample::passed_pair();
  longer.target = "ch10:warp_specialized_attention";
  const LineWidths widths{.target = longer.target.size(), .variant = 4};
  const std::string one = pair_line(sample::passed_pair(), base::Painter{}, widths),
                    other = pair_line(longer, base::Painter{}, widths);
  EXPECT_EQ(other.find("half"), longer.target.size() + 2);
  EXPECT_EQ(one.find("half"), other.find("half"));
  EXPECT_EQ(one.find("1.01x"), other.find("half") + 6);
  EXPECT_EQ(one.find("cannot tell"), other.find("cannot tell"));
  longer.status = evidence::Status::failed;
  EXPECT_EQ(pair_line(longer, base::Painter{}, widths).find("failed"), longer.target.size() + 2);
}

TEST(Reports, NoSpeedupForAPairThatDidNotPass) {
  const std::string best = "7.7";
  for (const std::string& text : reports_of(sample::passed_pair()))
    EXPECT_NE(text.find(best), std::string::npos) << "of one that passed:\n" << text;
  for (const auto status :
       {evidence::Status::failed, evidence::Status::timeout, evidence::Status::crashed, evidence::Status::skipped})
    for (const std::string& text : reports_of(sample::ended_pair("liar", status, "for a reason")))
      EXPECT_EQ(text.find(best), std::string::npos) << text;
}

TEST(Reports, WhatStandsOnAGuessSaysSo) {
  evidence::SuiteResult suite;
  suite.pairs = {sample::passed_pair()};
  evidence::PairResult& pair = suite.pairs[0];
  pair.lesson = "tiled";
  const char* marked = "~93 % of memory (~4.25 TB/s)";
  for (const std::string& text : {suite_markdown(suite, {}), pair_markdown(pair), pair_line(pair, base::Painter{})})
    EXPECT_THAT(text, testing::Not(testing::HasSubstr(marked))) << "measured";
  pair.variants[1].floor->ceiling_from = evidence::CeilingFrom::guess;
  for (const std::string& text : {suite_markdown(suite, {}), pair_markdown(pair), pair_line(pair, base::Painter{})})
    EXPECT_THAT(text, testing::HasSubstr(marked));
  EXPECT_THAT(suite_csv(suite, {}), testing::HasSubstr(",guess,"));
  for (const std::string& text : {suite_markdown(suite, {}), summary(suite, {}, base::Painter{})})
    EXPECT_THAT(text, testing::HasSubstr("No measured ceiling for memory: "));
}

TEST(Console, ALessonThatCouldNotRunIsNamedAndOutOfTheMean) {
  evidence::PairResult pair = sample::passed_pair();
  pair.variants[2].status = evidence::Status::skipped;
  pair.variants[2].reason = "needs compute capability 10.0";
  pair.variants[2].speedup.reset();
  const std::string line = pair_line(pair, base::Painter{});
  EXPECT_NE(line.find(" tiled "), std::string::npos) << line;
  EXPECT_NE(line.find("; its lesson, half, was skipped: needs compute capability 10.0"), std::string::npos) << line;
  evidence::SuiteResult suite;
  suite.pairs = {pair};
  EXPECT_EQ(summary(suite, {}, base::Painter{}).find("geometric mean"), std::string::npos);
}

TEST(Csv, APairWithoutVariantsHasARow) {
  evidence::SuiteResult suite;
  suite.pairs = {sample::ended_pair("early", evidence::Status::crashed, "crashed in setup")};
  suite.pairs[0].variants.clear();
  const std::string text = suite_csv(suite, sample::manifest());
  EXPECT_NE(text.find("\r\nch10:early,,,,,,crashed,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,1,,,,crashed in setup,,,,,,NVIDIA "
                      "H200,0123456789abcdef,,20260102_030405,2026-01-02T03:04:05Z\r\n"),
            std::string::npos)
      << text;
}

TEST(Csv, QuotesWhatNeedsIt) {
  evidence::SuiteResult suite;
  suite.pairs = {sample::ended_pair("a", evidence::Status::failed, "x, \"y\"\nz")};
  EXPECT_NE(suite_csv(suite, sample::manifest()).find("\"x, \"\"y\"\"\nz\""), std::string::npos);
}

TEST(Csv, NothingIsAFormula) {
  evidence::SuiteResult suite;
  for (const char* reason : {"=1+1", "+1 of 2", "-x", "@SUM(A1)", "\tx", "-12.5", "=HYPERLINK(\"x\",\"y\")"})
    suite.pairs.push_back(sample::ended_pair("a", evidence::Status::failed, reason));
  for (auto& pair : suite.pairs) pair.variants.clear();
  const std::string text = suite_csv(suite, sample::manifest());
  for (const char* field :
       {",'=1+1,", ",'+1 of 2,", ",'-x,", ",'@SUM(A1),", ",'\tx,", ",-12.5,", ",\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\","})
    EXPECT_NE(text.find(field), std::string::npos) << field << "\n" << text;
}

TEST(Markdown, OfOthersCannotBecomeMarkup) {
  const char* evil = "a\n```\n<img src=x>![p](http://x)|b`c`\n# head";
  evidence::SuiteResult suite;
  suite.pairs = {sample::ended_pair("evil", evidence::Status::failed, evil),
                 sample::ended_pair("other", evidence::Status::skipped, evil)};
  evidence::PairResult& pair = suite.pairs[0];
  pair.teaches = evil;
  pair.warnings = {evil};
  pair.lost = {{evidence::LostKind::other, evil}};
  pair.problems = {{evidence::Stage::verify, "", "reference", evil, evil}};
  for (evidence::VariantResult& variant : pair.variants) variant.reason = evil;
  evidence::Manifest manifest = sample::manifest();
  manifest.cpu = evil;
  for (const std::string& text : {pair_markdown(pair), suite_markdown(suite, manifest)}) {
    EXPECT_NE(text.find("a \\`\\`\\` &lt;img src=x>![p\\](http://x)\\|b\\`c\\` # head"), std::string::npos) << text;
    for (const char* markup : {"<img", "p](", "\n```", "\n# head"}) EXPECT_EQ(text.find(markup), std::string::npos) << text;
  }
}

TEST(Summary, SaysOnceWhatHoldsForManyPairs) {
  evidence::SuiteResult suite;
  for (const char* name : {"a", "b", "c"}) {
    suite.pairs.push_back(sample::ended_pair(name, evidence::Status::skipped, "no GPU"));
    suite.pairs.back().problems = {{evidence::Stage::selection, "", "needs", "no GPU", "install a driver"}};
  }
  suite.pairs.push_back(sample::ended_pair("d", evidence::Status::failed, "wrong"));
  suite.pairs.back().problems = {{evidence::Stage::verify, "", "reference", "wrong", "look at the edges"},
                                 {evidence::Stage::verify, "x", "reference", "wrong", "look at the edges"}};
  const std::string text = summary(suite, {}, base::Painter{});
  EXPECT_NE(text.find("\n3 pairs skipped (ch10:a, ch10:b, ch10:c): no GPU\n    install a driver\nch10:d: look at the edges\n"),
            std::string::npos)
      << text;
}

TEST(Summary, CountsSkippedPairsByChapterWhereTheyAreMany) {
  evidence::SuiteResult suite;
  for (const char* name : {"a", "b", "c", "d"})
    suite.pairs.push_back(sample::ended_pair(name, evidence::Status::skipped, "no GPU"));
  suite.pairs.back().chapter = "ch11";
  suite.pairs.push_back(sample::ended_pair("e", evidence::Status::skipped, "needs 2 GPUs"));
  const std::string text = skip_lines(suite, base::Painter{});
  EXPECT_EQ(text, "4 pairs skipped (ch10: 3, ch11: 1): no GPU\n1 pair skipped (ch10:e): needs 2 GPUs\n");
}

TEST(Summary, NamesCeilingsThatWereTooLow) {
  evidence::SuiteResult suite = sample::suite();
  EXPECT_EQ(low_ceilings_line(suite), "");
  suite.pairs[0].variants[1].floor->percent = 104;
  EXPECT_EQ(low_ceilings_line(suite), "") << "clocks differ by as much";
  suite.pairs[0].variants[1].floor->percent = 116;
  EXPECT_THAT(
      low_ceilings_line(suite),
      testing::AllOf(testing::StartsWith("1 variant faster than the ceilings, most ch07:transpose tiled (116 % of memory ("),
                     testing::HasSubstr("aisp peak --refresh")));
}

TEST(Summary, SaysOfEachChapterWhatPassedOfAll) {
  evidence::SuiteResult suite = sample::suite();
  EXPECT_EQ(chapter_lines(evidence::summarize(suite, {}), base::Painter{}),
            "ch07  1 of 1 passed; speedup 1.01x\nch10  0 of 4 passed, 1 failed, 1 timed out, 1 crashed, 1 skipped\n");
  suite.pairs.resize(1);
  EXPECT_EQ(chapter_lines(evidence::summarize(suite, {}), base::Painter{}), "") << "a run of one pair has said it";
}

}  // namespace
}  // namespace aisp::report
