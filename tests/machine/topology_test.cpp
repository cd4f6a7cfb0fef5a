// SPDX-License-Identifier: Apache-2.0
#include "machine/topology/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "machine/fake_root.hpp"
#include "machine/host.hpp"
#include "machine/json.hpp"
#include "machine/topology/clusters.hpp"
#include "places.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Two sockets of two cores with two threads each, a node a socket.
void add_processors(FakeRoot& root) {
  root.file("sys/devices/system/cpu/online", "0-7\n").file("proc/self/status", "Cpus_allowed_list:\t0-7\n");
  root.file("proc/cpuinfo", "model name\t: Test CPU\n").file("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu);
    const int core = cpu % 4, socket = core / 2;
    const std::string core_cpus = std::to_string(core) + "," + std::to_string(core + 4);
    root.file(folder + "/topology/physical_package_id", std::to_string(socket));
    root.file(folder + "/topology/core_cpus_list", core_cpus);
    root.file(folder + "/cache/index0/level", "1").file(folder + "/cache/index0/type", "Data");
    root.file(folder + "/cache/index0/size", "48K").file(folder + "/cache/index0/shared_cpu_list", core_cpus);
    root.file(folder + "/cache/index0/coherency_line_size", "64").file(folder + "/cache/index0/ways_of_associativity", "12");
    root.file(folder + "/cache/index3/level", "3").file(folder + "/cache/index3/type", "Unified");
    root.file(folder + "/cache/index3/size", "32M");
    root.file(folder + "/cache/index3/shared_cpu_list", socket == 0 ? "0-1,4-5" : "2-3,6-7");
  }
  root.file("sys/devices/system/node/online", "0-1\n");
  root.file("sys/devices/system/node/node0/cpulist", "0-1,4-5\n").file("sys/devices/system/node/node0/distance", "10 21\n");
  root.file("sys/devices/system/node/node1/cpulist", "2-3,6-7\n").file("sys/devices/system/node/node1/distance", "21 10\n");
  root.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       4194304 kB\n");
}

// A device at its place in the tree of bridges, and its name among all devices.
void add_pci(FakeRoot& root, const std::string& way, const std::string& address, int node) {
  root.file("sys/devices/" + way + "/" + address + "/numa_node", std::to_string(node));
  std::filesystem::create_directories(root.path() / "sys/bus/pci/devices");
  std::filesystem::create_symlink(root.path() / "sys/devices" / way / address, root.path() / "sys/bus/pci/devices" / address);
}

Topology two_gpus() {
  Topology topology{.machine = machine_with({h200(), h200()}), .gpus = {}, .host = {}};
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

TEST(HostTopologyTest, CountsSocketsCoresAndCaches) {
  FakeRoot root;
  add_processors(root);
  const HostTopology host = read_host_topology(read_host(root.path()), {}, root.path());
  EXPECT_EQ(host.sockets, 2);
  EXPECT_EQ(host.cores, 4);
  ASSERT_EQ(host.caches.size(), 2u);
  EXPECT_EQ(host.caches[0].bytes, 48u << 10);
  EXPECT_EQ(host.caches[0].ways, 12);
  EXPECT_THAT(host.caches[0].shared_by, ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_EQ(host.caches[1].bytes, 32u << 20);
  EXPECT_EQ(host.caches[1].ways, std::nullopt);
  EXPECT_EQ(last_level_cache_bytes(root.path()), 64u << 20) << "one in each socket";
  EXPECT_THAT(host.caches[1].shared_by, ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
  EXPECT_THAT(host.numa_distances, ElementsAre(ElementsAre(10, 21), ElementsAre(21, 10)));
}

TEST(HostTopologyTest, ReadsSizesOfPages) {
  FakeRoot root;
  root.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.file("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
  root.file("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1\n");
  root.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
  const HostTopology host = read_host_topology({}, {}, root.path());
  EXPECT_EQ(host.transparent_huge_pages, "madvise");
  ASSERT_EQ(host.huge_pages.size(), 2u);
  EXPECT_EQ(host.huge_pages[0].page_bytes, 2u << 20);
  EXPECT_EQ(host.huge_pages[1].page_bytes, 1u << 30);
  EXPECT_EQ(host.huge_pages[1].total, 2);
  EXPECT_EQ(host.huge_pages[1].free, 1);
}

TEST(HostTopologyTest, FindsNetworkDevicesWithTheirWayToTheGpu) {
  FakeRoot root;
  const std::string bridge = "pci0000:00/0000:00:01.0/0000:01:00.0";
  add_pci(root, bridge + "/0000:02:00.0", "0000:04:00.0", 1);  // the GPU
  add_pci(root, bridge + "/0000:02:01.0", "0000:06:00.0", 1);
  const std::string device = "sys/devices/" + bridge + "/0000:02:01.0/0000:06:00.0";
  root.file(device + "/infiniband/mlx5_0/node_guid", "0");
  root.file("sys/class/net/eth0/type", "1")
      .file("sys/class/net/eth0/operstate", "up\n")
      .file("sys/class/net/eth0/speed", "200000");
  std::filesystem::create_symlink(root.path() / device, root.path() / "sys/class/net/eth0/device");
  root.file("sys/class/net/lo/type", "772");
  root.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  root.file("sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n")
      .file("sys/class/infiniband/mlx5_1/ports/1/rate", "400 Gb/sec (4X NDR)");
  root.file("sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand\n");
  const HostTopology host = read_host_topology({}, {h200()}, root.path());
  ASSERT_EQ(host.nics.size(), 2u) << "loopback has no device, and mlx5_0 is eth0";
  EXPECT_EQ(host.nics[0].name, "eth0");
  EXPECT_EQ(host.nics[0].kind, "ethernet");
  EXPECT_EQ(host.nics[0].rdma_device, "mlx5_0");
  EXPECT_EQ(host.nics[0].pci, "0000:06:00.0");
  EXPECT_EQ(host.nics[0].numa_node, 1);
  EXPECT_EQ(host.nics[0].bits_s, 200e9);
  EXPECT_THAT(host.nics[0].gpu_paths, ElementsAre("PIX"));
  EXPECT_EQ(host.nics[1].kind, "infiniband");
  EXPECT_EQ(host.nics[1].state, "ACTIVE");
  EXPECT_EQ(host.nics[1].bits_s, 400e9);
  EXPECT_THAT(host.nics[1].gpu_paths, ElementsAre(""));
}

TEST(HostTopologyTest, KnowsNothingWhereNothingIsTold) {
  const FakeRoot root;
  const Topology topology{.machine = machine_without_gpu(), .gpus = {}, .host = read_host_topology({}, {}, root.path())};
  EXPECT_EQ(topology.host.sockets, std::nullopt);
  EXPECT_THAT(topology.host.caches, testing::IsEmpty());
  std::vector<std::string> names;
  for (const Unknown& unknown : unknowns(topology)) names.push_back(unknown.what);
  EXPECT_THAT(names, testing::IsSupersetOf({"sockets", "cores", "CPU caches", "NUMA nodes", "transparent huge pages", "GPUs"}));
  const std::string text = topology_text(topology);
  EXPECT_THAT(text, HasSubstr("unknown sockets (/sys does not tell)"));
  EXPECT_THAT(text, HasSubstr("no CUDA device: no NVIDIA driver; install NVIDIA driver 580 or newer"));
  EXPECT_THAT(text, Not(HasSubstr("Legend")));
}

TEST(PciPath, SaysWhatLiesBetween) {
  FakeRoot root;
  add_pci(root, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0", "0000:03:00.0", 0);
  add_pci(root, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0", "0000:04:00.0", 0);
  add_pci(root, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0", "0000:07:00.0", 0);
  add_pci(root, "pci0000:00/0000:00:02.0", "0000:08:00.0", 0);
  add_pci(root, "pci0000:40/0000:40:01.0", "0000:41:00.0", 0);
  add_pci(root, "pci0000:80/0000:80:01.0", "0000:81:00.0", 1);
  const auto path = [&](const char* other) { return pci_path(root.path(), "0000:03:00.0", other); };
  EXPECT_EQ(path("0000:04:00.0"), "PIX");
  EXPECT_EQ(path("0000:07:00.0"), "PXB");
  EXPECT_EQ(path("0000:08:00.0"), "PHB");
  EXPECT_EQ(path("0000:41:00.0"), "NODE");
  EXPECT_EQ(path("0000:81:00.0"), "SYS");
  EXPECT_EQ(path("0000:99:00.0"), "") << "unknown";
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

// Machines without a GPU see no other part of the schema than the host's.
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

TEST(TopologyTest, ProbeThatDiesLeavesTheHost) {
  const Topology topology = probe_topology(5, "/no/such/program");
  EXPECT_THAT(topology.gpus, testing::IsEmpty());
  EXPECT_THAT(topology.machine.cuda_error, HasSubstr("/no/such/program"));
  EXPECT_GT(topology.machine.host.cpus_usable, 0);
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
