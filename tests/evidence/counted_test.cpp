// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/counted.hpp"

#include <gtest/gtest.h>

#include "../report/sample_suite.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::evidence {
namespace {

namespace sample = report::sample;

TEST(Counted, WhatARunCountedIsRecorded) {
  SuiteResult suite{.run_id = "r", .pairs = {sample::passed_pair()}};
  PairResult& pair = suite.pairs.front();
  const base::ScratchDirectory folder;
  EXPECT_TRUE(record_counters(folder.path(), suite, sample::manifest()).empty()) << "nothing was counted";
  pair.variants.front().counters = {.source = "ncu", .passes = 3, .l2_hit_percent = 50, .report = "of_the_run.ncu-rep"};
  EXPECT_EQ(record_counters(folder.path(), suite, sample::manifest()), std::vector{pair.target});
  const std::vector<Counted> read = read_all_counted(folder.path());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].target, pair.target);
  ASSERT_EQ(read[0].variants.size(), 1u);
  EXPECT_EQ(read[0].variants[0].counters.l2_hit_percent, 50);
  EXPECT_EQ(read[0].variants[0].counters.report, "");
  pair.scale = 0.5;
  EXPECT_TRUE(record_counters(folder.path(), suite, sample::manifest()).empty()) << "not at full size";
}

TEST(Counted, RefusesFilesOfAnotherPlaceOrVersion) {
  const base::ScratchDirectory folder;
  SuiteResult suite{.run_id = "r", .pairs = {sample::passed_pair()}};
  suite.pairs.front().variants.front().counters = {.source = "CUPTI", .passes = 3};
  record_counters(folder.path(), suite, sample::manifest());
  const std::filesystem::path counters = folder.path() / "h200/counters";
  const std::filesystem::path file = std::filesystem::directory_iterator { counters } -> path();
  EXPECT_THROW(parse_counted("{}", "x"), base::Error);
  std::filesystem::rename(file, counters / "ch07_other.json");
  EXPECT_THROW(read_all_counted(folder.path()), base::Error);
}

}  // namespace
}  // namespace aisp::evidence
