// SPDX-License-Identifier: Apache-2.0
#include "suite/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "suite/made_up_machine.hpp"

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Pair plain(Device device, Bound bound, Needs needs) {
  return {.teaches = "",
          .make = nullptr,
          .baseline = {"a"},
          .optimized = variants({{"b"}}),
          .device = device,
          .bound = bound,
          .needs = needs};
}
constexpr Pair gpu_pair = plain(Device::gpu, Bound::memory, {});
constexpr Pair host_pair = plain(Device::host, Bound::host, {});
constexpr Pair bus_pair = plain(Device::gpu, Bound::transfer, {});
constexpr Pair two_gpu_pair = plain(Device::gpu, Bound::memory, {.gpus = 2});
constexpr Pair ranks_pair = plain(Device::gpu, Bound::memory, {.ranks = {2, 4}});
constexpr Pair launch_pair = plain(Device::gpu, Bound::latency, {});
constexpr Pair wide_pair{
    .teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}, {"c"}, {"d"}}), .bound = Bound::compute};
constexpr Pair new_gpu_pair = plain(Device::gpu, Bound::memory, {.min_sm = 100});

constexpr pair::Entry entry_a{"ch01", "a", "", &gpu_pair}, entry_b{"ch01", "b", "", &gpu_pair},
    entry_host{"ch01", "host", "", &host_pair}, entry_bus{"ch01", "bus", "", &bus_pair},
    entry_two{"ch01", "two", "", &two_gpu_pair}, entry_new{"ch01", "new", "", &new_gpu_pair},
    entry_ranks{"ch01", "ranks", "", &ranks_pair}, entry_launch{"ch01", "launch", "", &launch_pair},
    entry_wide{"ch01", "wide", "", &wide_pair};

std::string name(const Schedule::Assignment& assignment) { return std::string{assignment.placement->entry->name}; }

TEST(Placement, NamesTheObstacleAndTheWayRoundIt) {
  const machine::Machine machine = machine_with({});
  const auto placements = place({&entry_a, &entry_host}, machine, {});
  EXPECT_THAT(placements[0].choices, IsEmpty());
  EXPECT_THAT(placements[0].obstacle, HasSubstr("no CUDA device"));
  EXPECT_THAT(placements[1].choices, ElementsAre(IsEmpty()));
}

TEST(Placement, TakesTheGpuThatCan) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"B200", 100}});
  const auto placements = place({&entry_new, &entry_a}, machine, {0, 1});
  EXPECT_THAT(placements[0].choices, ElementsAre(ElementsAre(1)));
  EXPECT_THAT(placements[1].choices, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(Placement, SeveralGpusAreOfOneKind) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"L40S", 89}, {"H200", 90}});
  EXPECT_THAT(place({&entry_two}, machine, {0, 1, 2})[0].choices, ElementsAre(ElementsAre(0, 2)));
  EXPECT_THAT(place({&entry_two}, machine, {0, 1})[0].choices, IsEmpty());
  EXPECT_NE(place({&entry_two}, machine, {0, 1})[0].obstacle, "");
}

TEST(Placement, RanksTakeAllGpusOfOneKindUpToTheirMost) {
  const machine::Machine four = machine_with({{"H200", 90}, {"H200", 90}, {"L40S", 89}, {"H200", 90}});
  EXPECT_THAT(place({&entry_ranks}, four, {0, 1, 2, 3})[0].choices, ElementsAre(ElementsAre(0, 1, 3)));
  const machine::Machine five = machine_with({{"H200", 90}, {"H200", 90}, {"H200", 90}, {"H200", 90}, {"H200", 90}});
  EXPECT_THAT(place({&entry_ranks}, five, {0, 1, 2, 3, 4})[0].choices, ElementsAre(ElementsAre(0, 1, 2, 3)));
  const auto one = place({&entry_ranks}, machine_with({{"H200", 90}}), {0});
  EXPECT_THAT(one[0].choices, IsEmpty());
  EXPECT_THAT(one[0].obstacle, HasSubstr("needs 2 GPUs, found 1"));
}

TEST(ChooseGpus, ByIndexAndUuid) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  EXPECT_THAT(choose_gpus(machine, {}), ElementsAre(0, 1));
  EXPECT_THAT(choose_gpus(machine, {"1", "0", "1"}), ElementsAre(1, 0));
  EXPECT_THAT(choose_gpus(machine, {"GPU-2222"}), ElementsAre(1));
  EXPECT_THAT(choose_gpus(machine, {"GPU-22"}), ElementsAre(1));
  for (const char* wrong : {"2", "GPU-", "GPU-9", "x", "-1"}) EXPECT_THROW(choose_gpus(machine, {wrong}), base::Error) << wrong;
  EXPECT_THROW(choose_gpus(machine_with({}), {"0"}), base::Error);
  EXPECT_THAT(choose_gpus(machine_with({}), {}), IsEmpty());
}

TEST(Schedule, OneJobKeepsTheOrder) {
  const machine::Machine machine = machine_with({{"H200", 90}});
  const auto placements = place({&entry_a, &entry_host, &entry_b, &entry_new}, machine, {0});
  Schedule schedule{placements, 1};
  std::vector<std::string> order;
  while (const auto assignment = schedule.take()) {
    order.push_back(name(*assignment));
    schedule.give_back(*assignment);
  }
  EXPECT_THAT(order, ElementsAre("a", "host", "b"));
}

TEST(Schedule, GpuPairsRunTogetherAndHostPairsAloneAfterThem) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_host, &entry_a, &entry_b}, machine, {0, 1});
  Schedule schedule{placements, 2};
  const auto first = schedule.take(), second = schedule.take();
  EXPECT_EQ(name(*first), "a");
  EXPECT_EQ(name(*second), "b");
  EXPECT_NE(first->gpus, second->gpus);
  std::atomic<bool> got{false};
  std::thread waiting{[&] {
    const auto host = schedule.take();
    got = true;
    EXPECT_EQ(name(*host), "host");
    schedule.give_back(*host);
  }};
  schedule.give_back(*first);
  std::this_thread::sleep_for(std::chrono::milliseconds{30});
  EXPECT_FALSE(got) << "a host pair started beside a GPU pair";
  schedule.give_back(*second);
  waiting.join();
  EXPECT_FALSE(schedule.take());
}

// How long a turn that should have come, and one that should not, are waited for.
constexpr double soon_s = 5, briefly_s = 0.02;

TEST(Schedule, WhatTheHostAffectsIsVerifiedTogetherAndMeasuredInTurns) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_bus, &entry_launch}, machine, {0, 1});
  Schedule schedule{placements, 2};
  const auto bus = schedule.take(), launch = schedule.take();
  ASSERT_TRUE(bus && launch);
  const Placement &first = *bus->placement, &second = *launch->placement;
  EXPECT_FALSE(schedule.turn(first, run::Turn::quiet, briefly_s)) << "the other is being verified";
  EXPECT_FALSE(schedule.turn(second, run::Turn::quiet, briefly_s)) << "the first asked before";
  EXPECT_TRUE(schedule.turn(first, run::Turn::quiet, soon_s));
  EXPECT_FALSE(schedule.turn(first, run::Turn::work, briefly_s)) << "the other has waited for quiet";
  EXPECT_TRUE(schedule.turn(second, run::Turn::quiet, soon_s));
  EXPECT_FALSE(schedule.turn(first, run::Turn::work, briefly_s));
  EXPECT_TRUE(schedule.turn(second, run::Turn::work, soon_s));
  EXPECT_TRUE(schedule.turn(first, run::Turn::work, soon_s)) << "both go on together";
}

TEST(Schedule, ThePairThatDiesGivesItsTurnBack) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_bus, &entry_launch, &entry_host}, machine, {0, 1});
  Schedule schedule{placements, 2};
  const auto bus = schedule.take(), launch = schedule.take();
  EXPECT_FALSE(schedule.turn(*bus->placement, run::Turn::quiet, briefly_s));
  schedule.give_back(*launch);  // while it works
  EXPECT_TRUE(schedule.turn(*bus->placement, run::Turn::quiet, soon_s));
  std::thread host{[&] {
    const auto last = schedule.take();
    EXPECT_EQ(name(*last), "host");
    EXPECT_TRUE(schedule.turn(*last->placement, run::Turn::quiet, soon_s)) << "it has had it from its start on";
    schedule.give_back(*last);
  }};
  schedule.give_back(*bus);  // while it is measured
  host.join();
}

TEST(Schedule, StopEndsTheWaitForATurn) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_a, &entry_host, &entry_bus}, machine, {0, 1});
  Schedule schedule{placements, 3};
  const auto first = schedule.take(), bus = schedule.take();
  std::thread host{[&] { EXPECT_FALSE(schedule.take()); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  schedule.stop();
  host.join();
  EXPECT_FALSE(schedule.turn(*bus->placement, run::Turn::quiet, briefly_s));
  schedule.give_back(*first);
  EXPECT_TRUE(schedule.turn(*bus->placement, run::Turn::quiet, soon_s)) << "what has begun is measured";
}

TEST(Placement, WhatCannotAskForTurnsIsAloneThroughout) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto of = [&](const pair::Entry& entry, const Configuration& configuration = {}) {
    return place({&entry}, machine, {0, 1}, configuration)[0];
  };
  EXPECT_FALSE(of(entry_a).begins_alone());
  EXPECT_TRUE(of(entry_bus).takes_turns);
  EXPECT_FALSE(of(entry_bus).begins_alone());
  EXPECT_TRUE(of(entry_host).takes_turns) << "before it goes on";
  EXPECT_TRUE(of(entry_host).begins_alone()) << "its verification is timed";
  EXPECT_FALSE(of(entry_ranks).takes_turns);
  EXPECT_TRUE(of(entry_ranks).begins_alone());
  Configuration cold, profiled;
  cold.cold_start = true;
  profiled.profile = run::ProfileLevel::minimal;
  for (const Configuration& configuration : {cold, profiled}) {
    EXPECT_TRUE(of(entry_bus, configuration).begins_alone());
    EXPECT_FALSE(of(entry_a, configuration).begins_alone());
  }
}

// Runs a schedule with workers whose pairs sleep, and looks at what happens at the same time.
class SleepingRun {
 public:
  SleepingRun(const std::vector<Placement>& placements, std::size_t jobs) : schedule_{placements, jobs} {
    std::vector<std::jthread> workers;
    for (std::size_t job = 0; job < jobs; ++job)
      workers.emplace_back([this] {
        while (const auto assignment = schedule_.take()) {
          run(*assignment);
          schedule_.give_back(*assignment);
        }
      });
  }

  int ended() const { return ended_; }
  int most_working() const { return most_working_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void run(const Schedule::Assignment& assignment) {
    const Placement& placement = *assignment.placement;
    {
      const std::lock_guard lock{mutex_};
      for (const int gpu : assignment.gpus)
        if (!gpus_.insert(gpu).second) faults_.push_back(name(assignment) + " has another's GPU");
    }
    if (!placement.begins_alone()) work(assignment, false);
    if (placement.takes_turns) await(placement, run::Turn::quiet);
    if (placement.alone) work(assignment, true);
    if (placement.takes_turns) {
      await(placement, run::Turn::work);
      work(assignment, false);
    }
    const std::lock_guard lock{mutex_};
    for (const int gpu : assignment.gpus) gpus_.erase(gpu);
    ++ended_;
  }
  void await(const Placement& placement, run::Turn turn) {
    while (!schedule_.turn(placement, turn, briefly_s)) continue;
  }
  void work(const Schedule::Assignment& assignment, bool quiet) {
    {
      const std::lock_guard lock{mutex_};
      if (quiet_ > 0 || (quiet && working_ > 0)) faults_.push_back(name(assignment) + " works beside another");
      ++(quiet ? quiet_ : working_);
      most_working_ = std::max(most_working_, working_);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{3});
    const std::lock_guard lock{mutex_};
    --(quiet ? quiet_ : working_);
  }

  Schedule schedule_;
  std::mutex mutex_;
  std::set<int> gpus_;
  int working_ = 0, quiet_ = 0, most_working_ = 0, ended_ = 0;
  std::vector<std::string> faults_;
};

TEST(Schedule, NothingWorksWhileAPairIsMeasured) {
  for (const std::size_t gpus : {1u, 2u, 4u}) {
    std::vector<int> ordinals;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) ordinals.push_back(static_cast<int>(gpu));
    const machine::Machine machine = gpus == 1   ? machine_with({{"H200", 90}})
                                     : gpus == 2 ? machine_with({{"H200", 90}, {"H200", 90}})
                                                 : machine_with({{"H200", 90}, {"H200", 90}, {"H200", 90}, {"H200", 90}});
    std::vector<const pair::Entry*> selected{&entry_wide};
    for (int i = 0; i < 6; ++i) selected.insert(selected.end(), {&entry_a, &entry_host, &entry_launch, &entry_bus});
    if (gpus > 1) selected.insert(selected.end(), {&entry_two, &entry_ranks, &entry_two});
    for (const std::size_t jobs : {std::size_t{1}, gpus, gpus + 2}) {
      const SleepingRun run{place(selected, machine, ordinals), jobs};
      EXPECT_THAT(run.faults(), IsEmpty()) << gpus << " GPUs, " << jobs << " jobs";
      EXPECT_EQ(run.ended(), static_cast<int>(selected.size()));
      EXPECT_GE(run.most_working(), static_cast<int>(std::min(gpus, jobs)));
    }
  }
}

TEST(Schedule, ThoseThatTakeLongestStartFirst) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_host, &entry_launch, &entry_two, &entry_a, &entry_wide}, machine, {0, 1});
  Schedule schedule{placements, 2};
  std::vector<std::string> order;
  while (const auto assignment = schedule.take()) {
    order.push_back(name(*assignment));
    schedule.give_back(*assignment);
  }
  EXPECT_THAT(order, ElementsAre("wide", "a", "two", "launch", "host"));
}

TEST(Schedule, TheHostsClockTimesNothingBesideOthers) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  Configuration configuration;
  EXPECT_FALSE(place({&entry_a}, machine, {0, 1}, configuration)[0].alone);
  configuration.mode = run::TimingMode::timer;
  EXPECT_TRUE(place({&entry_a}, machine, {0, 1}, configuration)[0].alone);
}

TEST(Schedule, StopEndsTheWait) {
  const machine::Machine machine = machine_with({{"H200", 90}});
  const auto placements = place({&entry_a, &entry_b}, machine, {0});
  Schedule schedule{placements, 1};
  const auto first = schedule.take();
  std::thread waiting{[&] { EXPECT_FALSE(schedule.take()); }};
  schedule.stop();
  waiting.join();
}

}  // namespace
}  // namespace aisp::suite
