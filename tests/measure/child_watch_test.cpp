// SPDX-License-Identifier: Apache-2.0
#include "measure/child_watch.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "measure/cpu_work.hpp"

namespace {

using aisp::measure::ChildWatch;
using aisp::measure::work_ms;
using namespace std::chrono_literals;

void run_child(long milliseconds) {
  const pid_t child = fork();
  if (child == 0) {
    work_ms(milliseconds);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

void execute(ChildWatch& watch, long milliseconds_of_a_child) {
  watch.begin();
  if (milliseconds_of_a_child > 0) run_child(milliseconds_of_a_child);
  watch.end();
}

TEST(ChildWatch, WorkInsideOfExecutionsIsNone) {
  ChildWatch watch;
  watch.start_over();
  for (int i = 0; i < 3; ++i) execute(watch, 10);
  EXPECT_LT(watch.outside_ms(), 0.01);
}

TEST(ChildWatch, OfChildrenThatEndedBetweenExecutions) {
  ChildWatch watch;
  run_child(20);
  watch.start_over();
  for (int i = 0; i < 3; ++i) {
    run_child(10);
    execute(watch, 5);
  }
  EXPECT_GE(watch.outside_ms(), 29.9);
  EXPECT_LT(watch.outside_ms(), 40);
}

TEST(ChildWatch, WhatIsForgottenIsNobodys) {
  ChildWatch watch;
  watch.start_over();
  execute(watch, 0);
  run_child(10);
  watch.forget();
  execute(watch, 0);
  EXPECT_LT(watch.outside_ms(), 0.01);
}

// A child, and with `orphan` one of its own that it leaves behind.
class LivingChild {
 public:
  explicit LivingChild(bool orphan) {
    if (pipe(started_) != 0) throw std::runtime_error{"no pipe"};
    const pid_t child = fork();
    if (child == 0) {
      if (orphan && fork() != 0) _exit(0);
      const pid_t own = getpid();
      (void)!write(started_[1], &own, sizeof own);
      for (;;) {
        work_ms(1);
        usleep(2000);
      }
    }
    (void)!read(started_[0], &pid_, sizeof pid_);
    if (orphan) waitpid(child, nullptr, 0);
  }
  ~LivingChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(started_[0]);
    close(started_[1]);
  }
  LivingChild(const LivingChild&) = delete;
  LivingChild& operator=(const LivingChild&) = delete;

 private:
  int started_[2] = {-1, -1};
  pid_t pid_ = 0;
};

double outside_ms_beside(bool orphan) {
  const LivingChild child{orphan};
  ChildWatch watch;
  watch.start_over();
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(10ms);
    execute(watch, 0);
  }
  return watch.outside_ms();
}

TEST(ChildWatch, OfAChildThatLives) { EXPECT_GT(outside_ms_beside(false), 5); }

TEST(ChildWatch, OfAnOrphanWhereThisProcessTakesThemIn) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  EXPECT_GT(outside_ms_beside(true), 5);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
