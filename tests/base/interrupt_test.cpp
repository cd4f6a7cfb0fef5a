// SPDX-License-Identifier: Apache-2.0
#include "base/system/interrupt.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/system/clock.hpp"

namespace aisp::base {
namespace {

// Handlers belong to the whole process, so each case runs in one of its own; its exit status is the answer.
template <class Action>
int status_of(Action action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Interrupt, SetsAFlag) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              if (interrupted()) ::_exit(1);
              ::raise(SIGINT);
              ::_exit(interrupted() ? 0 : 2);
            }),
            0);
}

TEST(Interrupt, TheSecondControlCEndsAtOnce) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              ::raise(SIGINT);
              ::raise(SIGINT);
            }),
            130);
}

TEST(Interrupt, RepeatedSigtermStaysPolite) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              for (int i = 0; i < 1000; ++i) ::raise(SIGTERM);
              ::_exit(interrupted() ? 0 : 1);
            }),
            0);
}

TEST(Interrupt, EndsAtOnceWhatLooksAtNoFlag) {
  for (const int signal : {SIGINT, SIGTERM}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    EXPECT_EQ(status_of([&] {
                install_interrupt_handlers();
                ::dup2(ends[1], STDERR_FILENO);
                { const InterruptEndsAtOnce over{"unsaid\n"}; }
                ::raise(SIGTERM);
                reset_interrupt();
                const InterruptEndsAtOnce at_once{"last words\n"};
                ::raise(signal);
              }),
              130);
    ::close(ends[1]);
    char said[64];
    const ssize_t count = ::read(ends[0], said, sizeof said);
    EXPECT_EQ(std::string(said, static_cast<std::size_t>(std::max<ssize_t>(count, 0))), "last words\n");
    ::close(ends[0]);
  }
}

TEST(Interrupt, EndsAtOnceWhatWasAboutToBegin) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              ::raise(SIGTERM);
              const InterruptEndsAtOnce at_once{""};
            }),
            130);
}

TEST(Interrupt, LeavesNohupAlone) {
  EXPECT_EQ(status_of([] {
              ::signal(SIGHUP, SIG_IGN);
              install_interrupt_handlers();
              ::raise(SIGHUP);
              ::_exit(interrupted() ? 1 : 0);
            }),
            0);
}

TEST(Interrupt, EndsASleep) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              const pid_t self = ::getpid();
              if (::fork() == 0) {
                ::usleep(50'000);
                ::kill(self, SIGTERM);
                ::_exit(0);
              }
              const double before = monotonic_s();
              sleep_s(20);
              ::_exit(monotonic_s() - before < 10 ? 0 : 1);
            }),
            0);
}

TEST(Interrupt, CanBeReset) {
  EXPECT_EQ(status_of([] {
              install_interrupt_handlers();
              ::raise(SIGINT);
              reset_interrupt();
              if (interrupted()) ::_exit(1);
              ::raise(SIGINT);
              ::_exit(interrupted() ? 0 : 2);
            }),
            0);
}

}  // namespace
}  // namespace aisp::base
