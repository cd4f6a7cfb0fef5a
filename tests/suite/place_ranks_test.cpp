// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/made_up_machine.hpp"
#include "suite/placement.hpp"

namespace aisp::suite {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Pair of_ranks(Ranks ranks, Device device, bool peer_access = false) {
  return {.teaches = "",
          .make = nullptr,
          .baseline = {"a"},
          .optimized = variants({{"b"}}),
          .device = device,
          .needs = {.ranks = ranks, .peer_access = peer_access}};
}
constexpr Pair gpu_ranks = of_ranks({2, 8}, Device::gpu), peer_ranks = of_ranks({2, 2}, Device::gpu, true),
               host_ranks = of_ranks({3, 4}, Device::host);
constexpr Pair no_ranks{.teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}})};

// Processes on two machines with two GPUs each, every process with one of them; process 0 sees those of its machine.
std::vector<run::Process> four_processes() {
  std::vector<run::Process> processes;
  for (int i = 0; i < 4; ++i) {
    run::Process process{.index = i, .count = 4, .host = i < 2 ? "near" : "far", .clock = i < 2 ? "1" : "2"};
    process.gpu.uuid = "GPU-" + std::to_string(1111 * (i + 1));
    process.gpu.name = "H200";
    processes.push_back(process);
  }
  return processes;
}

Placement placed(const Pair& pair, const std::vector<run::Process>& processes) {
  const pair::Entry entry{"ch01", "ranks", "", &pair};
  const machine::Machine machine = machine_with({{"H200", 90}, {"H200", 90}});
  std::vector<Placement> placements = place({&entry}, machine, {0, 1});
  place_ranks(placements, machine, processes);
  placements.front().entry = nullptr;
  return placements.front();
}

TEST(PlaceRanks, TakesTheGpusThatProcess0SeesOfThem) {
  EXPECT_THAT(placed(gpu_ranks, four_processes()).choices, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(gpus_of_ranks(four_processes(), 3), ElementsAre("GPU-1111", "GPU-2222", "GPU-3333"));
  EXPECT_EQ(run::machine_count(four_processes(), 2), 1);
  EXPECT_EQ(run::machine_count(four_processes(), 3), 2);
}

TEST(PlaceRanks, LeavesPairsWithoutRanksWhereTheyAre) {
  EXPECT_THAT(placed(no_ranks, four_processes()).choices, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(PlaceRanks, NeedsAsManyProcessesAsRanks) {
  std::vector<run::Process> processes = four_processes();
  EXPECT_THAT(placed(host_ranks, processes).choices, ElementsAre(IsEmpty()));
  processes.resize(2);
  EXPECT_EQ(placed(host_ranks, processes).obstacle, "needs 3 processes, and the launcher started 2");
}

TEST(PlaceRanks, NeedsAGpuOfOneKindForEach) {
  std::vector<run::Process> processes = four_processes();
  processes[3].gpu.name = "H100";
  EXPECT_EQ(placed(gpu_ranks, processes).obstacle,
            "needs GPUs of one kind: process 0 on near has H200, process 3 on far has H100");
  processes[2].gpu.uuid = processes[0].gpu.uuid;
  EXPECT_THAT(placed(gpu_ranks, processes).obstacle, HasSubstr("process 2 on far has that of another process"));
  processes[1].gpu.uuid.clear();
  EXPECT_THAT(placed(gpu_ranks, processes).obstacle, HasSubstr("process 1 on near has none"));
}

TEST(PlaceRanks, NeedsOneMachineForPeerAccess) {
  std::vector<run::Process> processes = four_processes();
  EXPECT_THAT(placed(peer_ranks, processes).choices, ElementsAre(ElementsAre(0, 1)));
  std::swap(processes[1], processes[2]);
  EXPECT_THAT(placed(peer_ranks, processes).obstacle, HasSubstr("process 0 does not see them all"));
}

}  // namespace
}  // namespace aisp::suite
