// SPDX-License-Identifier: Apache-2.0
#include "suite/selection/select.hpp"

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

TEST(Select, GlobWithoutMatchSelectsNothing) {
  expect_error({"ch07:*zzz*"}, base::Exit::nothing, "*zzz*");
  EXPECT_THROW(select({}, {}), base::Error);
}

}  // namespace
}  // namespace aisp::suite
