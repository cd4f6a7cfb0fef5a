// SPDX-License-Identifier: Apache-2.0
#include "suite/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
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

TEST(Schedule, GpuPairsRunTogetherAndTheOthersAloneAfterThem) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const auto placements = place({&entry_host, &entry_a, &entry_bus, &entry_two, &entry_b}, machine, {0, 1});
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
  const auto bus = schedule.take();
  EXPECT_EQ(name(*bus), "bus");
  schedule.give_back(*bus);
  const auto two = schedule.take();
  EXPECT_EQ(two->gpus.size(), 2u);
  schedule.give_back(*two);
  EXPECT_FALSE(schedule.take());
}

// Runs a schedule on a made-up clock, as workers would.
class MadeUpRun {
 public:
  struct Span {
    std::string name;
    bool alone;
    std::vector<int> gpus;
    double begin_s, end_s;
  };

  MadeUpRun(const std::vector<Placement>& placements, std::size_t jobs) : schedule_{placements, jobs}, jobs_{jobs} {
    std::size_t left = placements.size();
    std::size_t left_together =
        jobs == 1 ? 0 : static_cast<std::size_t>(std::ranges::count(placements, false, &Placement::alone));
    while (left > 0 || !running_.empty()) {
      const bool may_start = running_.size() < jobs_ && (left_together > 0 || (left > 0 && running_.empty()));
      if (!may_start) {
        end_the_first();
        continue;
      }
      start();
      --left;
      if (left_together > 0) --left_together;
    }
    EXPECT_FALSE(schedule_.take());
  }

  const std::vector<Span>& spans() const { return spans_; }
  double wall_s() const { return now_s_; }

 private:
  void start() {
    const auto assignment = schedule_.take();
    ASSERT_TRUE(assignment);
    const Placement& placement = *assignment->placement;
    spans_.push_back(
        {name(*assignment), placement.alone, assignment->gpus, now_s_, now_s_ + static_cast<double>(placement.variants)});
    running_.emplace_back(spans_.size() - 1, *assignment);
  }
  void end_the_first() {
    const auto first = std::ranges::min_element(running_, {}, [&](const auto& each) { return spans_[each.first].end_s; });
    now_s_ = spans_[first->first].end_s;
    schedule_.give_back(first->second);
    running_.erase(first);
  }

  Schedule schedule_;
  std::size_t jobs_;
  double now_s_ = 0;
  std::vector<Span> spans_;
  std::vector<std::pair<std::size_t, Schedule::Assignment>> running_;
};

bool overlap(const MadeUpRun::Span& a, const MadeUpRun::Span& b) { return a.begin_s < b.end_s && b.begin_s < a.end_s; }

TEST(Schedule, FourGpusTakeAFourthOfTheGpusTimeAndAllOfTheHosts) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}, {"H200", 90}, {"H200", 90}});
  std::vector<const pair::Entry*> selected;
  for (int i = 0; i < 9; ++i) selected.insert(selected.end(), {&entry_a, &entry_host, &entry_launch, &entry_bus});
  selected.insert(selected.end(), {&entry_wide, &entry_two, &entry_wide, &entry_wide});
  const auto placements = place(selected, machine, {0, 1, 2, 3});
  const MadeUpRun run{placements, 4};
  ASSERT_EQ(run.spans().size(), selected.size());
  double alone_s = 0, together_s = 0;
  for (const MadeUpRun::Span& span : run.spans()) (span.alone ? alone_s : together_s) += span.end_s - span.begin_s;
  EXPECT_EQ(alone_s, 28 * 2);
  EXPECT_EQ(together_s, 9 * 2 + 3 * 4);
  EXPECT_LE(run.wall_s(), alone_s + together_s / 4 + 2);
  for (std::size_t i = 0; i < run.spans().size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const MadeUpRun::Span &a = run.spans()[i], &b = run.spans()[j];
      if (!overlap(a, b)) continue;
      EXPECT_FALSE(a.alone || b.alone) << a.name << " beside " << b.name;
      EXPECT_NE(a.gpus, b.gpus) << a.name << " and " << b.name << " on one GPU";
    }
  EXPECT_EQ(run.spans()[0].name, "wide") << "those that take longest come first";
  EXPECT_EQ(run.spans()[2].name, "wide");
}

TEST(Schedule, OneOfFourJobsRunsNothingBesideAnything) {
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  const MadeUpRun run{place({&entry_a, &entry_wide, &entry_host}, machine, {0, 1}), 1};
  EXPECT_EQ(run.wall_s(), 2 + 4 + 2);
  EXPECT_EQ(run.spans()[0].name, "a") << "in the order given";
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
