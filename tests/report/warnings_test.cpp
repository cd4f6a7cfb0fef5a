// SPDX-License-Identifier: Apache-2.0
#include "report/warnings.hpp"

#include <gmock/gmock.h>

namespace aisp::report {
namespace {

std::vector<evidence::PairResult> pairs_with(const std::vector<std::string>& warnings) {
  std::vector<evidence::PairResult> pairs;
  for (const std::string& warning : warnings) pairs.emplace_back().warnings = {warning};
  return pairs;
}

TEST(Warnings, OneSentenceIsOneEntryWithItsPairs) {
  const auto pairs = pairs_with({"the hypervisor gave 3 % of the time", "other", "the hypervisor gave 27 % of the time",
                                 "the hypervisor gave 4 % of the time"});
  const std::vector<Said> remarks = warnings_of(pairs);
  ASSERT_EQ(remarks.size(), 2u);
  EXPECT_EQ(remarks[0].text, "the hypervisor gave 3 to 27 % of the time");
  EXPECT_THAT(remarks[0].pairs, testing::ElementsAre(&pairs[0], &pairs[2], &pairs[3]));
  EXPECT_EQ(remarks[1].text, "other");
}

TEST(Warnings, BytesAreOrderedByTheirSize) {
  const auto pairs = pairs_with({"the driver says 2 GiB", "the driver says 962 MiB"});
  EXPECT_EQ(warnings_of(pairs).at(0).text, "the driver says 962 MiB to 2 GiB");
}

TEST(Warnings, NamesAndNumbersOfThingsAreNotAmounts) {
  EXPECT_EQ(warnings_of(pairs_with({"GPU 0 is used by process 12", "GPU 1 is used by process 12"})).size(), 2u);
  EXPECT_EQ(warnings_of(pairs_with({"library cublas was left out", "library cudnn was left out"})).size(), 2u);
}

TEST(Notes, AreNoWarnings) {
  std::vector<evidence::PairResult> pairs(2);
  pairs[0].notes = {evidence::drift_note(0.36)};
  pairs[1].notes = {evidence::drift_note(0.79)};
  EXPECT_TRUE(warnings_of(pairs).empty());
  EXPECT_THAT(notes_of(pairs).at(0).text, testing::HasSubstr("(autocorrelation 0.36 to 0.79)"));
}

}  // namespace
}  // namespace aisp::report
