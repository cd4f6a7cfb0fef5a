// SPDX-License-Identifier: Apache-2.0
#include "machine/topology/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "machine/fake_root.hpp"
#include "machine/host.hpp"
#include "machine/machine.hpp"
#include "places.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Topology two_gpus() {
  Topology topology{.machine = machine_with({h200(), h200()}), .gpus = {}};
  topology.machine.gpus[1].pci = "0000:05:00.0";
  for (Gpu& gpu : topology.machine.gpus) {
    gpu.numa_node = 0;
    gpu.attributes[cudaDevAttrWarpSize] = 32;
    gpu.attributes[cudaDevAttrMaxThreadsPerMultiProcessor] = 2048;
    gpu.condition = GpuCondition{
        .ecc = true, .mig_mode = false, .pcie_generation = 1, .pcie_generation_max = 5, .pcie_width = 16, .pcie_width_max = 16};
  }
  GpuTopology gpu{.clusters = {.max_size = 16, .cluster_groups = {18, 18, 16, 16, 16, 16, 16, 16}},
                  .nvlinks = {},
                  .nvlink_error = {},
                  .cpus = {0, 1, 2, 3},
                  .peers = {{}, {}}};
  for (int link = 0; link < 18; ++link) gpu.nvlinks.push_back({link, true, "4.0", 26'562'000'000, "NVSwitch", "0000:c1:00.0"});
  topology.gpus = {gpu, gpu};
  topology.gpus[0].peers[1] =
      topology.gpus[1].peers[0] = {.ancestor = 50, .access = true, .atomics = true, .performance_rank = 0};
  return topology;
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& line : base::split(text, '\n')) longest = std::max(longest, line.size());
  return longest;
}

TEST(TopologyTest, KnowsNothingWithoutAGpu) {
  const Topology topology{.machine = machine_without_gpu(), .gpus = {}};
  const std::vector<Unknown> list = unknowns(topology);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].what, "GPUs");
  const std::string text = topology_text(topology);
  EXPECT_THAT(text, HasSubstr("no CUDA device: no NVIDIA driver; install NVIDIA driver 580 or newer"));
  EXPECT_THAT(text, Not(HasSubstr("Legend")));
}

TEST(GpcProbe, JoinsWhatSharedACluster) {
  SmGroups groups;
  EXPECT_TRUE(groups.note({0, 2, 1, 3, 5, 7}, 2));
  EXPECT_THAT(groups.sizes(), ElementsAre(2, 2, 2));
  EXPECT_TRUE(groups.note({2, 4, 6}, 3));
  EXPECT_THAT(groups.sizes(), ElementsAre(4, 2, 2));
  EXPECT_FALSE(groups.note({6, 0}, 2)) << "known already";
  EXPECT_EQ(groups.seen(), 8);
}

TEST(TopologyTest, CountsNvlinksThroughSwitchesAndDirectOnes) {
  Topology topology = two_gpus();
  EXPECT_EQ(path_text(topology, 0, 0), "X");
  EXPECT_EQ(path_text(topology, 0, 1), "NV18");
  topology.gpus[1].nvlinks.resize(12);
  EXPECT_EQ(nvlinks_between(topology, 0, 1), 12);
  for (GpuTopology& gpu : topology.gpus) gpu.nvlinks.assign(4, {0, true, "4.0", {}, "GPU", ""});
  for (NvLink& link : topology.gpus[0].nvlinks) link.remote_pci = "0000:05:00.0";
  EXPECT_EQ(path_text(topology, 0, 1), "NV4");
  topology.gpus[0].nvlinks[3].active = false;
  EXPECT_EQ(path_text(topology, 0, 1), "NV3");
  for (GpuTopology& gpu : topology.gpus) gpu.nvlinks.clear();
  EXPECT_EQ(path_text(topology, 0, 1), "SYS");
  topology.gpus[0].peers[1].ancestor.reset();
  EXPECT_EQ(path_text(topology, 0, 1), "?");
}

TEST(TopologyTest, TextSaysWhatAGpuIsMadeOf) {
  const std::string text = topology_text(two_gpus());
  EXPECT_THAT(text, HasSubstr("132 SMs at most 1980 MHz; those that share clusters (a GPC): 2 of 18, 6 of 16"));
  EXPECT_THAT(text, HasSubstr("64 warps of 32, 2048 threads"));
  EXPECT_THAT(text, HasSubstr("unknown registers")) << "not zero: CUDA told nothing";
  EXPECT_THAT(text, HasSubstr("up to 16 blocks, distributed shared memory: yes"));
  EXPECT_THAT(text, HasSubstr("6144 bit x 3201 MHz x 2 = 4.92 TB/s, datasheet 4.8"));
  EXPECT_THAT(text, HasSubstr("now generation 1 x16, 4.00 GB/s each way"));
  EXPECT_THAT(text, HasSubstr("generation 5 x16, 63.0 GB/s each way"));
  EXPECT_THAT(text, HasSubstr("node 0, CPUs 0-3"));
  EXPECT_THAT(text, HasSubstr("18 of 18 links active, version 4.0, to NVSwitch; 478 GB/s each way"));
  EXPECT_THAT(text, HasSubstr("GPU0  X     NV18"));
  EXPECT_THAT(text, HasSubstr("GPU1  P2P+A  X"));
  EXPECT_THAT(text, HasSubstr("Legend"));
  EXPECT_LE(longest_line(text), 100u);
}

TEST(TopologyTest, TextSaysWhyThingsAreUnknown) {
  Topology topology = two_gpus();
  topology.machine.nvml_error = "libnvidia-ml.so.1 not found";
  topology.machine.gpus[0].condition.reset();
  topology.machine.gpus[0].numa_node = -1;
  topology.gpus[0] = {.clusters = {.max_size_error = "no room", .groups_error = "no room"},
                      .nvlinks = {},
                      .nvlink_error = "not found",
                      .cpus = {},
                      .peers = {}};
  const std::string text = topology_text(topology);
  EXPECT_THAT(text, HasSubstr("GPCs unknown: no room"));
  EXPECT_THAT(text, HasSubstr("link unknown (libnvidia-ml.so.1 not found)"));
  EXPECT_THAT(text, HasSubstr("node unknown (/sys does not tell), CPUs unknown"));
  const nlohmann::json json = topology_json(topology);
  EXPECT_TRUE(json["gpus"][0]["chip"]["cluster_groups"].is_null());
  EXPECT_TRUE(json["gpus"][0]["pcie"]["generation"].is_null());
  EXPECT_TRUE(json["gpus"][0]["numa_node"].is_null());
  std::vector<std::string> names;
  for (const nlohmann::json& unknown : json["unknown"]) names.push_back(unknown["what"]);
  EXPECT_THAT(names, testing::IsSupersetOf({"GPU 0 GPCs", "GPU 0 NVLink", "GPU 0 PCIe link", "GPU 0 ECC", "GPU 0 CPU affinity"}));
  EXPECT_THAT(names, Not(testing::Contains("GPU 1 GPCs")));
}

void expect_fields(const nlohmann::json& schema, const char* part, const nlohmann::json& object) {
  const nlohmann::json& fields = schema["$defs"][part]["properties"];
  for (const auto& [name, value] : object.items()) EXPECT_TRUE(fields.contains(name)) << part << " has no " << name;
  for (const auto& [name, field] : fields.items()) EXPECT_TRUE(object.contains(name)) << part << " lacks " << name;
}

// End-to-end tests on machines without a GPU see no part of it.
TEST(TopologyTest, GpuHasTheFieldsOfTheSchema) {
  const auto schema = nlohmann::json::parse(base::read_file(source_folder() / "docs/schema/topology.schema.json"));
  const nlohmann::json gpu = topology_json(two_gpus())["gpus"][1];
  expect_fields(schema, "gpu", gpu);
  for (const char* part : {"chip", "memory", "pcie"}) expect_fields(schema, part, gpu[part]);
  expect_fields(schema, "nvlink", gpu["nvlinks"][0]);
  expect_fields(schema, "peer", gpu["peers"][0]);
}

TEST(TopologyTest, LongListsStayOnThePage) {
  Topology topology = two_gpus();
  topology.gpus[0].cpus.clear();
  for (int cpu = 0; cpu < 400; cpu += 2) topology.gpus[0].cpus.push_back(cpu);
  const std::string text = topology_text(topology, base::Painter{}, 80);
  EXPECT_LE(longest_line(text), 80u);
  EXPECT_THAT(text, HasSubstr("398\n"));
}

TEST(TopologyTest, GoesThroughThePipeUnchanged) {
  Topology topology = two_gpus();
  topology.gpus[1].nvlinks[0] = {0, false, "", std::nullopt, "", ""};
  for (const GpuTopology& gpu : topology.gpus) {
    const nlohmann::json json = gpu;
    EXPECT_EQ(nlohmann::json(json.get<GpuTopology>()), json);
  }
  const auto back = nlohmann::json(topology.gpus[0]).get<GpuTopology>();
  EXPECT_THAT(back.clusters.cluster_groups, ElementsAre(18, 18, 16, 16, 16, 16, 16, 16));
  EXPECT_EQ(back.nvlinks[3].bytes_s, 26'562'000'000u);
  EXPECT_EQ(back.peers[1].ancestor, 50);
}

TEST(TopologyTest, ProbeThatDiesSaysWhy) {
  const Topology topology = probe_topology(5, "/no/such/program");
  EXPECT_THAT(topology.gpus, testing::IsEmpty());
  EXPECT_THAT(topology.machine.cuda_error, HasSubstr("/no/such/program"));
}

// The kernel may bring the child down; what needs no kernel is asked again without it.
TEST(TopologyTest, KernelThatCrashesCostsOnlyWhatItTells) {
  FakeRoot root;
  Machine machine = machine_with({h200()});
  root.file("answer", nlohmann::json(machine).dump());
  root.file("aisp",
            "#!/bin/sh\n[ \"$1\" = __probe ] && cat " + (root.path() / "answer").string() + " >&3 && exit\nkill -SEGV $$\n");
  std::filesystem::permissions(root.path() / "aisp", std::filesystem::perms::owner_all);
  const Topology topology = probe_topology(10, (root.path() / "aisp").string());
  ASSERT_EQ(topology.gpus.size(), 1u);
  EXPECT_EQ(topology.machine.gpus[0].sm_count, 132);
  EXPECT_THAT(topology.gpus[0].clusters.groups_error, HasSubstr("killed by SIGSEGV"));
}

}  // namespace
}  // namespace aisp::machine
