// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/recorded.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "../report/sample_suite.hpp"
#include "base/system/files.hpp"
#include "evidence/json.hpp"

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
  const nlohmann::json read = parse_json(base::read_file(folder.path() / "h200/counters/ch07_transpose.json"), "counters");
  EXPECT_EQ(read["target"], pair.target);
  ASSERT_EQ(read["variants"].size(), 1u);
  EXPECT_EQ(read["variants"][0]["counters"]["l2_hit_percent"], 50);
  EXPECT_EQ(read["variants"][0]["counters"]["report"], "");
  pair.scale = 0.5;
  EXPECT_TRUE(record_counters(folder.path(), suite, sample::manifest()).empty()) << "not at full size";
}

}  // namespace
}  // namespace aisp::evidence
