// SPDX-License-Identifier: Apache-2.0
#include "suite/selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Pair none{.teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}})};
constexpr pair::Entry table[] = {{"ch01", "pinned_memory", "", &none},
                                 {"ch07", "copy_gemm", "", &none},
                                 {"ch07", "transpose", "", &none},
                                 {"ch10", "cluster", "", &none},
                                 {"ch10", "tma_gemm", "", &none}};

std::vector<std::string> chosen(const std::vector<std::string>& targets) {
  std::vector<std::string> names;
  for (const pair::Entry* entry : select(table, targets)) names.push_back(entry->target());
  return names;
}

void expect_error(const std::vector<std::string>& targets, base::Exit status, const std::string& words) {
  try {
    select(table, targets);
    ADD_FAILURE() << "no error for " << targets.front();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(Select, NoTargetAndAllMeanEverything) {
  EXPECT_EQ(chosen({}).size(), 5u);
  EXPECT_EQ(chosen({"all"}).size(), 5u);
}

TEST(Select, ChaptersUnderTheirUsualNames) {
  for (const char* name : {"ch07", "ch7", "7", "07", "ch07:*"})
    EXPECT_THAT(chosen({name}), ElementsAre("ch07:copy_gemm", "ch07:transpose")) << name;
}

TEST(Select, PairsByTargetNameAndGlob) {
  EXPECT_THAT(chosen({"ch07:transpose"}), ElementsAre("ch07:transpose"));
  EXPECT_THAT(chosen({"transpose"}), ElementsAre("ch07:transpose"));
  EXPECT_THAT(chosen({"*gemm*"}), ElementsAre("ch07:copy_gemm", "ch10:tma_gemm"));
  EXPECT_THAT(chosen({"ch1?:*gemm"}), ElementsAre("ch10:tma_gemm"));
  EXPECT_THAT(chosen({"ch1*"}), ElementsAre("ch10:cluster", "ch10:tma_gemm"));
}

TEST(Select, EachPairOnceAndInOrder) {
  EXPECT_THAT(chosen({"ch10:cluster", "ch07", "transpose"}), ElementsAre("ch07:copy_gemm", "ch07:transpose", "ch10:cluster"));
}

TEST(Select, UnknownNamesAreUsageErrorsWithTheNearest) {
  expect_error({"ch07:transpsoe"}, base::Exit::usage, "ch07:transpose");
  expect_error({"clutser"}, base::Exit::usage, "cluster");
  expect_error({"ch99"}, base::Exit::usage, "ch01, ch07, ch10");
  expect_error({"ch07", "ch10:transpose"}, base::Exit::usage, "ch07:transpose");
}

constexpr pair::NotBuilt left_out[] = {{"ch05", "mmap", ""}, {"ch07", "wide_copy", ""}};

TEST(Select, WhatIsNotBuiltIsSelectedApart) {
  const auto targets = [](const std::vector<std::string>& wanted) {
    std::vector<std::string> names;
    for (const pair::NotBuilt* pair : select(table, left_out, wanted).not_built) names.push_back(pair->target());
    return names;
  };
  EXPECT_THAT(targets({}), ElementsAre("ch05:mmap", "ch07:wide_copy"));
  EXPECT_THAT(targets({"ch7"}), ElementsAre("ch07:wide_copy"));
  EXPECT_THAT(targets({"mm*", "ch10"}), ElementsAre("ch05:mmap"));
  EXPECT_TRUE(targets({"ch10"}).empty());
  EXPECT_TRUE(select(table, left_out, {"ch05"}).built.empty());
  try {
    select(table, left_out, {"ch05:mmpa"});
    ADD_FAILURE() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr("did you mean ch05:mmap"));
  }
}

TEST(NotBuilt, TheCommandBuildsWhatWasNamed) {
  // The tests' own registry was built whole.
  EXPECT_EQ(build_command({}), "./setup.sh");
  EXPECT_EQ(build_command({"ch01", "all"}), "./setup.sh");
  EXPECT_EQ(build_command({"ch01", "ch05:mmap", "ch01"}), "./setup.sh --chapters ch01,ch05:mmap");
  EXPECT_EQ(build_command({"ch1*:*gemm*"}), "./setup.sh --chapters 'ch1*:*gemm*'");
  EXPECT_EQ(built_part(), "");
}

TEST(NotBuilt, OfASelectionOfNothingElseTheCommandIsAnError) {
  const Selection none_built = select(table, left_out, {"ch05:mmap"});
  try {
    demand_built(none_built, {"ch05:mmap"});
    ADD_FAILURE() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::nothing);
    EXPECT_STREQ(error.what(), "ch05:mmap is not built; ./setup.sh --chapters ch05:mmap builds it");
  }
  const std::vector<evidence::PairResult> results = results_of_not_built(none_built, {"ch05:mmap"});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].status, evidence::Status::skipped);
  EXPECT_EQ(results[0].reason, "not built; ./setup.sh --chapters ch05:mmap builds it");
  EXPECT_NO_THROW(demand_built(select(table, left_out, {"ch07"}), {"ch07"}));
}

TEST(Select, GlobWithoutMatchSelectsNothing) {
  expect_error({"ch07:*zzz*"}, base::Exit::nothing, "*zzz*");
  EXPECT_THROW(select({}, {}), base::Error);
}

}  // namespace
}  // namespace aisp::suite
