// SPDX-License-Identifier: Apache-2.0
// Reports byte for byte. After a change that is meant: AISP_UPDATE_GOLDEN=1 writes the files anew; read the difference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "evidence/json.hpp"
#include "report/console.hpp"
#include "report/csv.hpp"
#include "report/markdown.hpp"
#include "sample_suite.hpp"

namespace aisp::report {
namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path{AISP_SOURCE_DIR} / "tests/report/golden" / name;
  if (std::getenv("AISP_UPDATE_GOLDEN") != nullptr) base::write_atomically(path, text);
  EXPECT_EQ(text, base::read_file(path)) << "differs from " << path;
}

std::string console_text(bool colour) {
  std::string text;
  const base::Painter paint{colour};
  for (const auto& pair : sample::suite().pairs) text += pair_line(pair, paint) + "\n" + pair_details(pair);
  return text + summary(sample::suite(), paint);
}

TEST(Golden, Console) { expect_golden("console.txt", console_text(false)); }
TEST(Golden, SuiteMarkdown) { expect_golden("suite.md", suite_markdown(sample::suite(), sample::manifest())); }
TEST(Golden, PairMarkdown) { expect_golden("pair.md", pair_markdown(sample::passed_pair())); }
TEST(Golden, Csv) { expect_golden("results.csv", suite_csv(sample::suite())); }
TEST(Golden, Json) { expect_golden("suite.json", nlohmann::json(sample::suite()).dump(2) + "\n"); }

TEST(Console, ColourOnlyWhenAsked) {
  EXPECT_EQ(console_text(false).find('\x1b'), std::string::npos);
  EXPECT_NE(console_text(true).find('\x1b'), std::string::npos);
}

TEST(Reports, NoSpeedupForAPairThatDidNotPass) {
  for (const auto status :
       {evidence::Status::failed, evidence::Status::timeout, evidence::Status::crashed, evidence::Status::skipped}) {
    evidence::SuiteResult liar;
    liar.pairs = {sample::ended_pair("liar", status, "for a reason")};
    for (const std::string& text : {suite_markdown(liar, sample::manifest()), pair_markdown(liar.pairs[0]), suite_csv(liar),
                                    pair_line(liar.pairs[0], base::Painter{}) + summary(liar, base::Painter{})})
      EXPECT_EQ(text.find("7.7"), std::string::npos) << text;
  }
}

TEST(Csv, APairWithoutVariantsHasARow) {
  evidence::SuiteResult suite;
  suite.pairs = {sample::ended_pair("early", evidence::Status::crashed, "crashed in setup")};
  suite.pairs[0].variants.clear();
  const std::string text = suite_csv(suite);
  EXPECT_NE(text.find("\r\nch10:early,,,crashed,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,1,,,,crashed in setup\r\n"), std::string::npos)
      << text;
}

TEST(Csv, QuotesWhatNeedsIt) {
  evidence::SuiteResult suite;
  suite.pairs = {sample::ended_pair("a", evidence::Status::failed, "x, \"y\"\nz")};
  EXPECT_NE(suite_csv(suite).find("\"x, \"\"y\"\"\nz\""), std::string::npos);
}

}  // namespace
}  // namespace aisp::report
