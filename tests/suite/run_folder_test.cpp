// SPDX-License-Identifier: Apache-2.0
#include "suite/records/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/results_log.hpp"

namespace aisp::suite {
namespace {

using testing::HasSubstr;

class RunFolderTest : public testing::Test {
 protected:
  std::filesystem::path artifacts() const { return scratch_.path() / "artifacts"; }
  void finish(const RunFolder& folder) { base::write_atomically(folder.path() / "results.jsonl", "x\n"); }
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

TEST_F(RunFolderTest, WhatAKilledPartLeftBehindGoesWhenItIsContinued) {
  { finish(RunFolder::create(artifacts(), "killed", "test")); }
  const std::filesystem::path folder = artifacts() / "killed";
  base::write_atomically(folder / ".scratch-AbCdEf" / "large", "x");
  base::write_atomically(folder / "confirmation_1" / ".scratch-AbCdEf" / "large", "x");
  std::filesystem::create_directory_symlink(artifacts(), folder / ".scratch-AbCdEf" / "link");
  base::write_atomically(folder / "ch90_good" / ".output.part-AbCdEf", "half");
  base::write_atomically(folder / "ch90_good" / "output.log", "whole");
  RunFolder::reopen(artifacts(), "killed", "test");
  EXPECT_FALSE(std::filesystem::exists(folder / ".scratch-AbCdEf"));
  EXPECT_FALSE(std::filesystem::exists(folder / "confirmation_1" / ".scratch-AbCdEf"));
  EXPECT_FALSE(std::filesystem::exists(folder / "ch90_good" / ".output.part-AbCdEf"));
  EXPECT_TRUE(std::filesystem::exists(folder / "ch90_good" / "output.log"));
  EXPECT_TRUE(std::filesystem::exists(folder / "results.jsonl"));
}

TEST_F(RunFolderTest, ALinkInItIsNotContinued) {
  { finish(RunFolder::create(artifacts(), "sent", "test")); }
  std::filesystem::create_directory_symlink(scratch_.path(), artifacts() / "sent" / "ch90_good");
  expect_error(base::Exit::usage, "sent/ch90_good is a link", [&] { RunFolder::reopen(artifacts(), "sent", "test"); });
  std::filesystem::create_directory_symlink(artifacts() / "sent", artifacts() / "link");
  std::filesystem::remove(artifacts() / "sent" / "ch90_good");
  EXPECT_EQ(RunFolder::reopen(artifacts(), "link", "test").id(), "link") << "the folder's own name is the user's";
}

TEST_F(RunFolderTest, IsAispsByWhatItsFilesSay) {
  const auto written = [&](const char* file, const std::string& text) {
    const std::filesystem::path folder = artifacts() / "any";
    base::remove_tree(folder);
    base::write_atomically(folder / file, text);
    EXPECT_TRUE(is_run_folder(folder));
    return was_written_by_aisp(folder);
  };
  EXPECT_TRUE(written("results.jsonl", evidence::header_line({.run_id = "r", .started_utc = "t"}) + "\n"));
  EXPECT_FALSE(written("results.jsonl", ""));
  EXPECT_FALSE(written("results.jsonl", "{\"kind\":\"notes\",\"schema_version\":1}\n"));
  EXPECT_FALSE(written("results.jsonl", std::string(10'000, '{')));
  const evidence::Manifest manifest{.run_id = "r", .aisp_version = "0.1.0"};
  EXPECT_TRUE(written("manifest.json", nlohmann::json(manifest).dump()));
  EXPECT_FALSE(written("manifest.json", "{}"));
  EXPECT_FALSE(written("manifest.json", "{\"schema_version\":1,\"manifest_version\":3,\"name\":\"my extension\"}"));
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

TEST_F(RunFolderTest, AStartThatFailedIsNotInTheWayOfItsName) {
  {
    const RunFolder failed = RunFolder::create(artifacts(), "nightly", "test");
    base::write_atomically(failed.path() / "effective_configuration.json", "{}");
    base::write_atomically(failed.path() / "manifest.json", "{}");
    base::write_atomically(failed.path() / "results.jsonl", "");
  }
  EXPECT_FALSE(std::filesystem::exists(artifacts() / "nightly"));
  {
    const RunFolder failed = RunFolder::create(artifacts(), "nightly", "test");
    base::write_atomically(failed.path() / "mine.txt", "x");
  }
  EXPECT_TRUE(std::filesystem::exists(artifacts() / "nightly/mine.txt"));
}

TEST_F(RunFolderTest, AStartThatWasKilledIsTakenOrContinued) {
  base::write_atomically(artifacts() / "nightly/.lock", "process 1 (killed) since then\n");
  EXPECT_EQ(RunFolder::create(artifacts(), "nightly", "test").id(), "nightly");
  base::write_atomically(artifacts() / "later/.lock", "");
  base::write_atomically(artifacts() / "later/effective_configuration.json", R"({"schema_version":1,"targets":["ch90:good"]})");
  expect_error(base::Exit::usage, "continue it with --resume", [&] { RunFolder::create(artifacts(), "later", "test"); });
  EXPECT_EQ(RunFolder::reopen(artifacts(), "later", "test").id(), "later");
  EXPECT_TRUE(was_written_by_aisp(artifacts() / "later"));
}

TEST_F(RunFolderTest, PipesAndHardLinksInItAreNotContinued) {
  { finish(RunFolder::create(artifacts(), "sent", "test")); }
  const std::filesystem::path file = artifacts() / "sent/output.log";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  expect_error(base::Exit::usage, "sent/output.log is no regular file", [&] { RunFolder::reopen(artifacts(), "sent", "test"); });
  std::filesystem::remove(file);
  base::write_atomically(scratch_.path() / "precious", "mine");
  std::filesystem::create_hard_link(scratch_.path() / "precious", file);
  expect_error(base::Exit::usage, "sent/output.log is a hard link", [&] { RunFolder::reopen(artifacts(), "sent", "test"); });
}

TEST_F(RunFolderTest, SaysWhichPlaceCannotBeWritten) {
  base::write_atomically(scratch_.path() / "file", "");
  expect_error(base::Exit::unfit, "--artifacts-dir", [&] { RunFolder::create(scratch_.path() / "file" / "below", "", "test"); });
}

}  // namespace
}  // namespace aisp::suite
