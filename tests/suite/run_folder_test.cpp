// SPDX-License-Identifier: Apache-2.0
#include "suite/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/files.hpp"

namespace aisp::suite {
namespace {

using testing::HasSubstr;

class RunFolderTest : public testing::Test {
 protected:
  std::filesystem::path artifacts() const { return scratch_.path() / "artifacts"; }
  void finish(const RunFolder& folder) { base::write_atomically(folder.path() / "results.jsonl", ""); }
  template <class Action>
  static void expect_error(base::Exit status, const std::string& words, Action action) {
    try {
      action();
      ADD_FAILURE() << "no error";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.status(), status);
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  base::ScratchDirectory scratch_{"aisp-test-"};
};

TEST_F(RunFolderTest, TwoRunsInOneSecondGetTwoFolders) {
  const RunFolder first = RunFolder::create(artifacts(), "", "test"), second = RunFolder::create(artifacts(), "", "test");
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(RunFolder::create(artifacts(), "", "test", "verify_").id().substr(0, 7), "verify_");
}

TEST_F(RunFolderTest, AnExistingNameIsNotOverwritten) {
  const RunFolder first = RunFolder::create(artifacts(), "nightly", "test");
  EXPECT_EQ(first.id(), "nightly");
  expect_error(base::Exit::usage, "nightly exists already; continue it with --resume",
               [&] { RunFolder::create(artifacts(), "nightly", "test"); });
}

TEST_F(RunFolderTest, IsReopenedByNameByPathAndAsTheLatest) {
  { finish(RunFolder::create(artifacts(), "nightly", "test")); }
  EXPECT_EQ(RunFolder::reopen(artifacts(), "nightly", "test").id(), "nightly");
  EXPECT_EQ(RunFolder::reopen("elsewhere", (artifacts() / "nightly").string(), "test").id(), "nightly");
  EXPECT_EQ(RunFolder::reopen("elsewhere", (artifacts() / "nightly/").string(), "test").id(), "nightly");
  EXPECT_EQ(RunFolder::reopen(artifacts(), "latest", "test").id(), "nightly");
  expect_error(base::Exit::usage, "did you mean nightly?", [&] { RunFolder::reopen(artifacts(), "nighlty", "test"); });
  expect_error(base::Exit::usage, "no run", [&] { RunFolder::reopen(scratch_.path() / "empty", "latest", "test"); });
}

TEST_F(RunFolderTest, IsInUseAsLongAsItIsHeld) {
  {
    const RunFolder held = RunFolder::create(artifacts(), "nightly", "aisp run");
    finish(held);
    EXPECT_TRUE(is_in_use(held.path()));
    expect_error(base::Exit::unfit, "aisp run", [&] { RunFolder::reopen(artifacts(), "nightly", "test"); });
  }
  EXPECT_FALSE(is_in_use(artifacts() / "nightly"));
  EXPECT_TRUE(is_run_folder(artifacts() / "nightly"));
  EXPECT_FALSE(is_run_folder(artifacts()));
}

TEST_F(RunFolderTest, LeavesNothingBehindWhenNothingWasWritten) {
  { const RunFolder unused = RunFolder::create(artifacts(), "nightly", "test"); }
  EXPECT_FALSE(std::filesystem::exists(artifacts() / "nightly"));
  {
    const RunFolder used = RunFolder::create(artifacts(), "nightly", "test");
    finish(used);
  }
  EXPECT_TRUE(std::filesystem::exists(artifacts() / "nightly"));
}

TEST_F(RunFolderTest, SaysWhichPlaceCannotBeWritten) {
  base::write_atomically(scratch_.path() / "file", "");
  expect_error(base::Exit::unfit, "--artifacts-dir", [&] { RunFolder::create(scratch_.path() / "file" / "below", "", "test"); });
}

}  // namespace
}  // namespace aisp::suite
