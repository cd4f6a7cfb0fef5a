// SPDX-License-Identifier: Apache-2.0
// Files that users name: pipes, devices and links among them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/error.hpp"
#include "base/system/files.hpp"

namespace aisp::base {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OutputFile : public testing::Test {
 protected:
  fs::path in(const char* name) const { return scratch_.path() / name; }
  static void expect_refusal(const fs::path& path, const std::string& words) {
    for (const auto& attempt :
         {+[](const fs::path& to) { demand_writable(to); }, +[](const fs::path& to) { write_output(to, "x"); }})
      try {
        attempt(path);
        ADD_FAILURE() << path << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.status(), Exit::unfit);
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("cannot write " + path.string()), HasSubstr(words)));
      }
  }
  ScratchDirectory scratch_{"aisp-test-"};
};

TEST_F(OutputFile, APipeGetsTheTextAndStaysAPipe) {
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  demand_writable(in("pipe"));  // without waiting for the reader
  auto read = std::async(std::launch::async, [&] { return read_input(in("pipe")); });
  write_output(in("pipe"), "text");
  EXPECT_EQ(read.get(), "text");
  EXPECT_TRUE(fs::is_fifo(in("pipe")));
}

TEST_F(OutputFile, ADescriptorOfThisProcessIsWrittenAtItsPlace) {
  const int file = ::open(in("log").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::write(file, "before ", 7), 7);
  const fs::path name = "/dev/fd/" + std::to_string(file);
  demand_writable(name);
  write_output(name, "json");
  fs::create_symlink(name, in("link"));
  write_output(in("link"), " and more");
  ASSERT_EQ(::write(file, " after", 6), 6);
  ::close(file);
  EXPECT_EQ(read_file(in("log")), "before json and more after");
  expect_refusal(name, "Bad file descriptor");
}

TEST_F(OutputFile, LinksAreFollowedAndStay) {
  fs::create_directory(in("elsewhere"));
  fs::create_symlink("elsewhere/file", in("link"));  // leads nowhere yet
  fs::create_symlink("link", in("link to link"));
  demand_writable(in("link to link"));
  EXPECT_FALSE(fs::exists(in("elsewhere/file"))) << "looking wrote something";
  for (const char* text : {"1", "2"}) {
    write_output(in("link to link"), text);
    EXPECT_TRUE(fs::is_symlink(in("link to link")) && fs::is_symlink(in("link")));
    EXPECT_EQ(read_file(in("elsewhere/file")), text);
  }
}

TEST_F(OutputFile, ADeviceIsWritten) {
  // A terminal: should this ever fail, nothing can have taken its place, as it would that of /dev/null.
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) GTEST_SKIP() << "no terminals here";
  const fs::path name = ::ptsname(terminal);
  const int held = ::open(name.c_str(), O_RDWR | O_NOCTTY);  // what was written goes with the last one to have it open
  fs::create_symlink(name, in("link"));
  demand_writable(in("link"));
  write_output(in("link"), "text");
  char shown[16];
  EXPECT_EQ(std::string(shown, static_cast<std::size_t>(::read(terminal, shown, sizeof shown))), "text");
  EXPECT_TRUE(fs::is_character_file(name));
  EXPECT_TRUE(fs::is_symlink(in("link")));
  ::close(held);
  ::close(terminal);
}

TEST_F(OutputFile, WhatCannotBeWrittenIsToldBefore) {
  expect_refusal(scratch_.path(), "directory");
  fs::create_symlink(scratch_.path(), in("folder"));
  expect_refusal(in("folder"), "directory");
  expect_refusal("/proc/aisp.json", "");
  fs::create_symlink("loop", in("loop"));
  expect_refusal(in("loop"), "link");
  EXPECT_EQ(std::distance(fs::directory_iterator{scratch_.path()}, fs::directory_iterator{}), 2) << "looking left something";
}

TEST_F(OutputFile, APipeInThePlaceOfAFileOfOursIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  for (const auto& attempt : {+[](const fs::path& path) { read_file(path); }, +[](const fs::path& path) { AppendFile{path}; }})
    try {
      attempt(in("pipe"));
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(in("pipe").string()));
    }
  EXPECT_EQ(try_read_file(in("pipe")), std::nullopt);
  EXPECT_EQ(try_read_beginning(in("pipe"), 10), std::nullopt);
  EXPECT_EQ(try_read_file("/dev/zero", 10), std::nullopt);
}

TEST_F(OutputFile, AFileWithTwoNamesIsNotAppendedTo) {
  write_atomically(in("precious"), "mine");
  fs::create_hard_link(in("precious"), in("log"));
  EXPECT_THROW(AppendFile{in("log")}, Error);
  EXPECT_EQ(read_file(in("precious")), "mine");
}

std::atomic<int> signals{0};

TEST(WriteAll, GoesOnAfterASignal) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) { ++signals; };  // no SA_RESTART
  ::sigaction(SIGALRM, &action, &before);
  const std::string text(1 << 20, 'x');  // more than a pipe holds
  std::size_t got = 0;
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_BLOCK, &alarm, nullptr);  // of the reader, who inherits it
  std::thread reader{[&] {
    char block[4096];
    while (signals < 20) ::usleep(1000);  // the pipe is full, and writes end with EINTR
    for (ssize_t count = 0; (count = ::read(ends[0], block, sizeof block)) > 0;) got += static_cast<std::size_t>(count);
  }};
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  const itimerval often{{0, 2000}, {0, 2000}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  EXPECT_EQ(write_all(ends[1], text), 0);
  signals = 20;  // should it have failed before
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(got, text.size());
}

TEST(WriteAll, TellsWhyItCannot) { EXPECT_EQ(write_all(-1, "x"), EBADF); }

}  // namespace
}  // namespace aisp::base
