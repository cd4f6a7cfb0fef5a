// SPDX-License-Identifier: Apache-2.0
#include "base/system/lock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"

namespace aisp::base {
namespace {

using testing::HasSubstr;

TEST(FileLock, KeepsASecondHolderOut) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "lock";
  auto first = FileLock::acquire(path, "aisp run --targets ch07");
  ASSERT_TRUE(first);
  EXPECT_FALSE(FileLock::acquire(path, "another"));
  EXPECT_THAT(FileLock::holder(path), HasSubstr("process " + std::to_string(::getpid()) + " (aisp run --targets ch07) since 20"));
  first.reset();
  EXPECT_TRUE(FileLock::acquire(path, "another"));
}

TEST(FileLock, MovesWithItsOwner) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "lock";
  auto first = FileLock::acquire(path, "first");
  {
    const FileLock moved{std::move(*first)};
    first.reset();
    EXPECT_FALSE(FileLock::acquire(path, "second"));
  }
  EXPECT_TRUE(FileLock::acquire(path, "second"));
}

TEST(FileLock, WaitsForAsLongAsItIsTold) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "lock";
  const auto first = FileLock::acquire(path, "first");
  const double before = monotonic_s();
  EXPECT_FALSE(FileLock::acquire(path, "second", 0.1));
  EXPECT_GE(monotonic_s() - before, 0.1);
  EXPECT_FALSE(FileLock::acquire(path, "second", 100, [] { return true; }));
  EXPECT_LT(monotonic_s() - before, 20);
}

TEST(FileLock, IsFreeAgainWhenItsHolderIsKilled) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "lock";
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lock = FileLock::acquire(path, "doomed");
    sleep_s(60);
    ::_exit(lock ? 0 : 1);
  }
  while (FileLock::holder(path).empty()) sleep_s(0.005);
  EXPECT_FALSE(FileLock::acquire(path, "second"));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_TRUE(FileLock::acquire(path, "second", 1));
}

TEST(FileLock, IsForThoseWhoMayWriteOrForAll) {
  for (const auto& [users, mask, mode] :
       {std::tuple{LockUsers::all, 077, 0666u}, std::tuple{LockUsers::writers, 077, 0600u},
        std::tuple{LockUsers::writers, 022, 0600u}, std::tuple{LockUsers::writers, 002, 0660u}}) {
    const ScratchDirectory scratch;
    const auto path = scratch.path() / "lock";
    const mode_t before = ::umask(static_cast<mode_t>(mask));
    FileLock::acquire(path, "first", 0, {}, users);
    ::umask(before);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, mode) << std::oct << mask;
  }
}

TEST(FileLock, TakesNoPipeAndNoFileWithASecondName) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "lock", precious = scratch.path() / "precious";
  ASSERT_EQ(::mkfifo(path.c_str(), 0444), 0);
  EXPECT_THROW(FileLock::acquire(path, "first"), Error);
  EXPECT_EQ(FileLock::holder(path), "");
  std::filesystem::remove(path);
  write_atomically(precious, "mine");
  std::filesystem::create_hard_link(precious, path);
  EXPECT_THROW(FileLock::acquire(path, "first"), Error);
  EXPECT_EQ(read_file(precious), "mine");
}

TEST(FileLock, DoesNotFollowALinkSomebodyPlanted) {
  const ScratchDirectory scratch;
  write_atomically(scratch.path() / "precious", "keep");
  std::filesystem::create_symlink(scratch.path() / "precious", scratch.path() / "lock");
  EXPECT_THROW(FileLock::acquire(scratch.path() / "lock", "x"), Error);
  EXPECT_EQ(read_file(scratch.path() / "precious"), "keep");
}

}  // namespace
}  // namespace aisp::base
