// SPDX-License-Identifier: Apache-2.0
#include "base/system/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.hpp"

namespace aisp::base {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator{folder}, fs::directory_iterator{}));
}

template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no base::Error";
  return {Exit::good, ""};
}

// Files of this process cannot grow beyond a limit while this lives: what a full disk does, without one.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    previous_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, previous_);
  }

 private:
  rlimit before_{};
  void (*previous_)(int) = nullptr;
};

TEST(Files, ComeBackAsWritten) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "a" / "b.txt";
  const std::string content{"one\0two\n", 8};
  write_atomically(file, content);
  EXPECT_EQ(read_file(file), content);
  write_atomically(file, "");
  EXPECT_EQ(read_file(file), "");
  EXPECT_EQ(entries(file.parent_path()), 1u) << "a temporary file was left behind";
}

TEST(Files, ThatCannotBeReadAreNamed) {
  const ScratchDirectory scratch;
  const Error missing = error_of([&] { read_file(scratch.path() / "missing.json"); });
  EXPECT_THAT(missing.what(), HasSubstr("missing.json"));
  EXPECT_THAT(missing.what(), HasSubstr("No such file"));
  EXPECT_EQ(missing.status(), Exit::usage);
  EXPECT_THAT(error_of([&] { read_file(scratch.path()); }).what(), HasSubstr("directory"));
  write_atomically(scratch.path() / "long", std::string(101, 'x'));
  EXPECT_THAT(error_of([&] { read_file(scratch.path() / "long", 100); }).what(), HasSubstr("longer than 100 bytes"));
  EXPECT_EQ(read_file(scratch.path() / "long", 101).size(), 101u);
  EXPECT_EQ(try_read_file(scratch.path() / "missing"), std::nullopt);
}

TEST(Files, KeepTheirOldContentWhenTheDiskIsFull) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "results.json";
  write_atomically(file, "old");
  {
    const SmallDisk disk{4096};
    const Error error = error_of([&] { write_atomically(file, std::string(100'000, 'x')); });
    EXPECT_EQ(error.status(), Exit::unfit);
    EXPECT_THAT(error.what(), HasSubstr("results.json"));
  }
  EXPECT_EQ(read_file(file), "old");
  EXPECT_EQ(entries(scratch.path()), 1u) << "a temporary file was left behind";
}

TEST(Files, KeepTheirModeWhenReplaced) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "real";
  write_atomically(file, "1");
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  write_atomically(file, "2");
  EXPECT_EQ(read_file(file), "2");
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
}

TEST(Files, OfOurOwnNamingTakeThePlaceOfLinks) {
  const ScratchDirectory scratch;
  const fs::path precious = scratch.path() / "precious", link = scratch.path() / "report.html";
  write_atomically(precious, "mine");
  fs::create_symlink(precious, link);
  write_atomically(link, "report");
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(read_file(link), "report");
  EXPECT_EQ(read_file(precious), "mine");
}

TEST(Files, HaveNamesOfTheirOwnWhileTheyAreWritten) {
  EXPECT_TRUE(is_temporary_name(".results.csv.part-Ab3xYz"));
  for (const char* name : {"results.csv", ".lock", "results.csv.part-Ab3xYz", ".results.csv.part-Ab3xYzz", ".part-"})
    EXPECT_FALSE(is_temporary_name(name)) << name;
}

TEST(AppendFile, GrowsByWholeLines) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "runs" / "results.jsonl";
  {
    AppendFile lines{file};
    lines.append_line("{\"a\":1}");
    EXPECT_EQ(read_file(file), "{\"a\":1}\n") << "not readable while it grows";
    EXPECT_THROW(lines.append_line("two\nlines"), std::invalid_argument);
  }
  AppendFile{file}.append_line("{\"a\":2}");
  EXPECT_EQ(read_file(file), "{\"a\":1}\n{\"a\":2}\n");
}

TEST(AppendFile, KnowsWhetherItIsStillInItsPlace) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "results.jsonl";
  const AppendFile lines{file};
  EXPECT_EQ(lines.place(), AppendFile::Place::here);
  fs::rename(file, scratch.path() / "moved");
  EXPECT_EQ(lines.place(), AppendFile::Place::gone);
  write_atomically(file, "another's");
  EXPECT_EQ(lines.place(), AppendFile::Place::taken);
}

TEST(AppendFile, FollowsNoLink) {
  const ScratchDirectory scratch;
  write_atomically(scratch.path() / "precious", "mine");
  fs::create_symlink("precious", scratch.path() / "results.jsonl");
  EXPECT_THAT(error_of([&] { AppendFile{scratch.path() / "results.jsonl"}; }).what(), HasSubstr("is a link"));
  EXPECT_EQ(read_file(scratch.path() / "precious"), "mine");
}

TEST(AppendFile, LeavesNoHalfLineOnAFullDisk) {
  const ScratchDirectory scratch;
  AppendFile lines{scratch.path() / "results.jsonl"};
  lines.append_line("first");
  {
    const SmallDisk disk{1000};
    EXPECT_EQ(error_of([&] { lines.append_line(std::string(5000, 'x')); }).status(), Exit::unfit);
  }
  lines.append_line("second");
  EXPECT_EQ(read_file(lines.path()), "first\nsecond\n");
}

TEST(Trees, AreRemovedWithoutFollowingLinks) {
  const ScratchDirectory scratch, outside;
  write_atomically(outside.path() / "precious", "x");
  make_directories(scratch.path() / "tree" / "deep");
  fs::create_directory_symlink(outside.path(), scratch.path() / "tree" / "link");
  EXPECT_EQ(remove_tree(scratch.path() / "tree"), 3u);
  EXPECT_FALSE(fs::exists(scratch.path() / "tree"));
  EXPECT_TRUE(fs::exists(outside.path() / "precious"));
  EXPECT_EQ(remove_tree(scratch.path() / "tree"), 0u);
}

TEST(Folders, ThatCannotBeMadeAreNamed) {
  const ScratchDirectory scratch;
  write_atomically(scratch.path() / "file", "x");
  EXPECT_THAT(error_of([&] { make_directories(scratch.path() / "file" / "below"); }).what(), HasSubstr("file/below"));
}

TEST(ScratchDirectory, GoesWithItsOwner) {
  fs::path path;
  {
    const ScratchDirectory scratch{"aisp-test-"};
    path = scratch.path();
    write_atomically(path / "deep" / "file", "x");
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    EXPECT_THAT(path.filename().string(), testing::StartsWith("aisp-test-"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(SelfPath, IsThisProgram) { EXPECT_TRUE(fs::equivalent(self_path(), "/proc/self/exe")); }

}  // namespace
}  // namespace aisp::base
