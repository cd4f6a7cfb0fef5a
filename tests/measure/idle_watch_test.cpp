// SPDX-License-Identifier: Apache-2.0
#include "measure/idle_watch.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "measure/cpu_work.hpp"

namespace {

using aisp::measure::IdleWatch;
using aisp::measure::work_ms;
using namespace std::chrono_literals;

TEST(IdleWatch, WhoSleepsIsIdle) {
  std::jthread sleeper{[] { std::this_thread::sleep_for(50ms); }};
  std::this_thread::sleep_for(5ms);
  EXPECT_LT(IdleWatch{}.busiest_ms(), IdleWatch::most_spinning_ms);
}

TEST(IdleWatch, OthersAreRunnableWhileTheyWork) {
  EXPECT_FALSE(aisp::measure::others_are_runnable());
  std::jthread worker{[](const std::stop_token& stop) {
    while (!stop.stop_requested()) work_ms(1);
  }};
  EXPECT_TRUE(aisp::measure::others_are_runnable());
}

TEST(IdleWatch, TheCallersOwnWorkIsItsOwn) {
  const IdleWatch watch;
  work_ms(5);
  EXPECT_LT(watch.busiest_ms(), IdleWatch::most_spinning_ms);
}

TEST(IdleWatch, AThreadThatWorksOn) {
  std::jthread worker{[](const std::stop_token& stop) {
    while (!stop.stop_requested()) work_ms(1);
  }};
  const IdleWatch watch;
  std::this_thread::sleep_for(20ms);
  EXPECT_GT(watch.busiest_ms(), IdleWatch::most_spinning_ms);
}

TEST(IdleWatch, AThreadThatBeganAndEndedMeanwhile) {
  const IdleWatch watch;
  std::thread{[] { work_ms(3); }}.join();
  EXPECT_GE(watch.busiest_ms(), 2.9);
}

TEST(IdleWatch, AChildAndAChildOfThat) {
  int started[2];
  ASSERT_EQ(pipe(started), 0);
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    if (fork() == 0) {
      (void)!write(started[1], "x", 1);
      for (;;) work_ms(1);
    }
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(started[0], &byte, 1), 1);
  const IdleWatch watch;
  std::this_thread::sleep_for(20ms);
  EXPECT_GT(watch.busiest_ms(), IdleWatch::most_spinning_ms);
  kill(-child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(started[0]);
  close(started[1]);
}

}  // namespace
