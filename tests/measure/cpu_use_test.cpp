// SPDX-License-Identifier: Apache-2.0
#include "measure/cpu_use.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "measure/cpu_work.hpp"

namespace {

using aisp::measure::CpuWait;
using aisp::measure::work_ms;
using namespace std::chrono_literals;

// This thread and a process that never rests, and is no child of this one, share one CPU.
class CpuWaitBesideOthers : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t between = fork();
    ASSERT_GE(between, 0);
    if (between == 0) {
      const pid_t other = fork();
      if (other == 0)
        for (;;) work_ms(1);
      _exit(write(told[1], &other, sizeof other) == sizeof other ? 0 : 1);
    }
    ASSERT_EQ(read(told[0], &other_, sizeof other_), static_cast<ssize_t>(sizeof other_));
    waitpid(between, nullptr, 0);
    close(told[0]), close(told[1]);
    std::this_thread::sleep_for(5ms);
  }
  void TearDown() override {
    if (other_ > 0) kill(other_, SIGKILL);
    sched_setaffinity(0, sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_{};
  pid_t other_ = 0;
};

TEST_F(CpuWaitBesideOthers, WhoWorksWaits) {
  const CpuWait wait;
  const auto start = std::chrono::steady_clock::now();
  work_ms(50);
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(wait.ms());
  EXPECT_NEAR(*wait.ms(), wall.count() - 50, 0.25 * wall.count());
  EXPECT_GT(*wait.ms(), 20);
}

TEST_F(CpuWaitBesideOthers, WhoSleepsWaitsForNothing) {
  const CpuWait wait;
  std::this_thread::sleep_for(100ms);
  ASSERT_TRUE(wait.ms());
  EXPECT_LT(*wait.ms(), 50);
}

TEST_F(CpuWaitBesideOthers, AThreadWaitsToo) {
  std::jthread worker{[](const std::stop_token& stop) {
    while (!stop.stop_requested()) work_ms(1);
  }};
  const CpuWait wait;
  std::this_thread::sleep_for(100ms);
  ASSERT_TRUE(wait.ms());
  EXPECT_GT(*wait.ms(), 20);
}

TEST_F(CpuWaitBesideOthers, AChildWaitsToo) {
  const pid_t child = fork();
  if (child == 0)
    for (;;) work_ms(1);
  const CpuWait wait;
  std::this_thread::sleep_for(100ms);
  const std::optional<double> waited_ms = wait.ms();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(waited_ms);
  EXPECT_GT(*waited_ms, 20);
}

TEST_F(CpuWaitBesideOthers, WhatThreadsAndChildrenWaitedThatEndedNobodyKnows) {
  const CpuWait wait;
  std::thread{[] { work_ms(3); }}.join();
  EXPECT_FALSE(wait.ms());

  const CpuWait wait_of_child;
  const pid_t child = fork();
  if (child == 0) {
    work_ms(20);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(wait_of_child.ms());
}

}  // namespace
