// SPDX-License-Identifier: Apache-2.0
#include "pair/session.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace aisp::pair {
namespace {

TEST(ThreadTeam, EveryWorkerRunsOnceACall) {
  const auto team = make_thread_team(4, false);
  EXPECT_EQ(team->size(), 4);
  std::vector<std::atomic<int>> counts(4);
  for (int call = 0; call < 1000; ++call) team->run([&](int worker) { ++counts[static_cast<std::size_t>(worker)]; });
  for (const auto& count : counts) EXPECT_EQ(count, 1000);
}

TEST(ThreadTeam, WorkersAreTheSameThreadsInEveryCallAndTheFirstIsTheCaller) {
  const auto team = make_thread_team(3, false);
  std::vector<std::thread::id> first(3), second(3);
  team->run([&](int worker) { first[static_cast<std::size_t>(worker)] = std::this_thread::get_id(); });
  team->run([&](int worker) { second[static_cast<std::size_t>(worker)] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 3u);
}

TEST(ThreadTeam, AnExceptionReachesTheCallerAndTheTeamLivesOn) {
  const auto team = make_thread_team(2, false);
  EXPECT_THROW(team->run([](int worker) {
    if (worker == 1) throw std::runtime_error{"out"};
  }),
               std::runtime_error);
  std::atomic<int> ran{0};
  team->run([&](int) { ++ran; });
  EXPECT_EQ(ran, 2);
}

TEST(ThreadTeam, PinningLeavesTheCallersAffinityAlone) {
  cpu_set_t before, after;
  sched_getaffinity(0, sizeof before, &before);
  const auto team = make_thread_team(2, true);
  std::vector<int> cpus(2);
  team->run([&](int worker) {
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    cpus[static_cast<std::size_t>(worker)] = CPU_COUNT(&mine);
  });
  sched_getaffinity(0, sizeof after, &after);
  EXPECT_EQ(cpus, (std::vector<int>{1, 1}));
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadTeam, NeedsAWorker) { EXPECT_THROW(make_thread_team(0, false), std::invalid_argument); }

}  // namespace
}  // namespace aisp::pair
