// SPDX-License-Identifier: Apache-2.0
#include "suite/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.hpp"

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
constexpr Pair new_gpu_pair = plain(Device::gpu, Bound::memory, {.min_sm = 100});

constexpr pair::Entry entry_a{"ch01", "a", "", &gpu_pair}, entry_b{"ch01", "b", "", &gpu_pair},
    entry_host{"ch01", "host", "", &host_pair}, entry_bus{"ch01", "bus", "", &bus_pair},
    entry_two{"ch01", "two", "", &two_gpu_pair}, entry_new{"ch01", "new", "", &new_gpu_pair};

machine::Machine machine_with(const std::vector<std::pair<std::string, int>>& kinds) {
  machine::Machine machine;
  machine.host.cpus_usable = 8;
  machine.host.memory_available_bytes = std::uint64_t{64} << 30;
  machine.driver_cuda_version = machine.runtime_cuda_version = 13000;
  if (kinds.empty()) machine.cuda_error = "no CUDA device";
  for (const auto& [name, sm] : kinds) {
    machine::Gpu gpu;
    gpu.ordinal = static_cast<int>(machine.gpus.size());
    gpu.uuid = "GPU-" + std::to_string(1111 * (gpu.ordinal + 1));
    gpu.name = name;
    gpu.sm = sm;
    gpu.memory_bytes = std::uint64_t{100} << 30;
    gpu.peers.assign(kinds.size(), true);
    machine.gpus.push_back(gpu);
  }
  return machine;
}

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
