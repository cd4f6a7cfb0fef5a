// SPDX-License-Identifier: Apache-2.0
#include "base/system/process.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"

namespace aisp::base {
namespace {

using testing::HasSubstr;
using testing::Not;

Command shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

std::string read_results(const Child& child) {
  std::string text;
  char block[256];
  for (;;) {
    pollfd ready{child.result_fd(), POLLIN, 0};
    if (::poll(&ready, 1, 5000) <= 0) return text + "<timeout>";
    const ssize_t got = ::read(child.result_fd(), block, sizeof block);
    if (got <= 0) return text;
    text.append(block, static_cast<std::size_t>(got));
  }
}

// True once `pid` has ended; a zombie has.
bool gone(pid_t pid, double within_s = 3) {
  for (const double deadline = monotonic_s() + within_s; monotonic_s() < deadline; sleep_s(0.005)) {
    const auto stat = try_read_file("/proc/" + std::to_string(pid) + "/stat");
    if (!stat || stat->find(") Z ") != std::string::npos) return true;
  }
  return false;
}

pid_t pid_from(const std::filesystem::path& file, double within_s = 3) {
  for (const double deadline = monotonic_s() + within_s; monotonic_s() < deadline; sleep_s(0.005)) {
    const auto text = try_read_file(file);
    if (text && text->ends_with("\n")) return std::atoi(text->c_str());
  }
  ADD_FAILURE() << "nothing in " << file;
  return -1;
}

TEST(Child, TellsHowItEnded) {
  Child good{shell("exit 0")};
  EXPECT_TRUE(good.wait().good());
  Child bad{shell("exit 7")};
  EXPECT_EQ(bad.wait().text(), "exit status 7");
  Child killed{shell("kill -SEGV $$")};
  const ExitState state = killed.wait();
  EXPECT_TRUE(state.signalled);
  EXPECT_THAT(state.text(), testing::StartsWith("killed by SIGSEGV"));
  EXPECT_GT(state.peak_rss_bytes, 100u << 10);
}

TEST(Child, ReadsItsInputAndWritesItsOutputToAFile) {
  const ScratchDirectory scratch;
  Command command = shell("cat; echo error >&2; echo $GREETING; echo ${HOME-unset}");
  command.input = std::string(200'000, 'x') + "\n";  // more than a pipe holds
  command.output = scratch.path() / "log";
  command.environment = {{"GREETING", "hello"}};
  command.without = {"HOME"};
  Child child{command};
  EXPECT_TRUE(child.wait().good());
  EXPECT_EQ(read_file(command.output), command.input + "error\nhello\nunset\n");
}

TEST(Child, HasItsResultPipeAndNoOtherDescriptorOfItsParent) {
  const int leaked = ::open("/dev/null", O_RDONLY);  // without CLOEXEC
  Command command = shell("ls /proc/self/fd >&3");
  command.result_pipe = true;
  Child child{command};
  const std::string listed = read_results(child);
  ::close(leaked);
  // ls itself opens one for the folder
  EXPECT_EQ(listed, "0\n1\n2\n3\n4\n");
  EXPECT_TRUE(child.wait().good());
}

TEST(Child, RunsInAGroupOfItsOwn) {
  Child child{shell("sleep 60")};
  EXPECT_EQ(::getpgid(child.pid()), child.pid());
  EXPECT_FALSE(child.wait(0.02).has_value());
  EXPECT_TRUE(child.kill_group(SIGTERM));
  EXPECT_EQ(child.wait().text(), "killed by SIGTERM");
}

TEST(Child, CannotWriteBeyondItsLimit) {
  const ScratchDirectory scratch;
  Command command = shell("while echo 0123456789 2>/dev/null; do :; done");
  command.output = scratch.path() / "log";
  command.output_limit_bytes = 10'000;
  Child child{command};
  EXPECT_TRUE(child.wait(10).has_value());
  EXPECT_LE(std::filesystem::file_size(command.output), 10'000u);
}

TEST(Child, ThatCannotStartIsAnErrorWithTheReason) {
  for (const auto& [program, reason] : {std::pair{"aisp-no-such-program", "PATH"}, {"/no/such/program", "No such file"}}) {
    try {
      Child child{{.argv = {program}}};
      ADD_FAILURE() << program << " started";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(program));
      EXPECT_THAT(error.what(), HasSubstr(reason));
      EXPECT_EQ(error.status(), Exit::unfit);
    }
  }
}

// With descriptors up to `limit` only: the exit status of a process that then starts `command`; 42 where that throws what it
// should.
int start_with_few_descriptors(rlim_t limit, const Command& command) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{limit, limit};
    ::setrlimit(RLIMIT_NOFILE, &few);
    try {
      Child started{command};
      ::_exit(started.wait().code);
    } catch (const Error& error) {
      ::_exit(std::string_view{error.what()}.find("Too many open files") != std::string_view::npos ? 42 : 43);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(Child, HasItsOwnDescriptorsOrDoesNotStart) {
  Command command = shell("test -p /proc/self/fd/1 && test -S /proc/self/fd/3 || exit 9");
  command.output_pipe = command.result_pipe = true;
  int started = 0, refused = 0;
  for (rlim_t limit = 3; limit < 40; ++limit) {
    const int status = start_with_few_descriptors(limit, command);
    EXPECT_TRUE(status == 0 || status == 42) << status << " with " << limit << " descriptors";
    ++(status == 0 ? started : refused);
  }
  EXPECT_GT(started, 0);
  EXPECT_GT(refused, 0);
}

TEST(Child, ThatIgnoresSigtermIsKilled) {
  Child child{shell("trap '' TERM; echo ready; while :; do sleep 0.1; done")};
  sleep_s(0.1);
  const double before = monotonic_s();
  EXPECT_EQ(child.terminate(0.2).text(), "killed by SIGKILL");
  EXPECT_LT(monotonic_s() - before, 3);
}

TEST(Child, MayCleanUpWhenItIsTerminated) {
  const ScratchDirectory scratch;
  Command command = shell("trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.02; done");
  command.output = scratch.path() / "log";
  Child child{command};
  for (int i = 0; i < 500 && try_read_file(command.output).value_or("").empty(); ++i) sleep_s(0.01);
  EXPECT_EQ(child.terminate(5).text(), "exit status 3");
  EXPECT_THAT(read_file(command.output), testing::EndsWith("cleaned\n"));
}

TEST(Child, TakesItsDescendantsWithIt) {
  const ScratchDirectory scratch;
  const auto inside = scratch.path() / "inside", outside = scratch.path() / "outside";
  Child child{shell("sleep 60 & echo $! >" + inside.string() + "; setsid sh -c 'echo $$ >" + outside.string() +
                    "; exec sleep 60' & wait")};
  const pid_t in_group = pid_from(inside), left_group = pid_from(outside);
  ASSERT_NE(::getpgid(left_group), child.pid());
  child.terminate(0.1);
  EXPECT_TRUE(gone(in_group));
  EXPECT_TRUE(gone(left_group));
}

TEST(Child, DiesWithItsParent) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "pid";
  const pid_t parent = ::fork();
  if (parent == 0) {
    Child child{shell("echo $$ >" + file.string() + "; exec sleep 60")};
    pid_from(file);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(gone(pid_from(file)));
}

TEST(Child, HasOrdinarySignalsWhateverItsParentDoes) {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  Child child{shell("kill -TERM $$; exit 0")};
  EXPECT_EQ(child.wait().text(), "killed by SIGTERM");
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

TEST(Programs, AreFoundOnPath) {
  EXPECT_TRUE(find_program("sh").has_value());
  EXPECT_FALSE(find_program("aisp-no-such-program").has_value());
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_THAT(signal_name(63), HasSubstr("63"));
}

}  // namespace
}  // namespace aisp::base
