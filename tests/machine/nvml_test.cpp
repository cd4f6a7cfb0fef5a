// SPDX-License-Identifier: Apache-2.0
#include "machine/nvml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace aisp::machine {
namespace {

// A management library of the test's own, with one GPU.
namespace fake {
int only_gpu = 0;
int init_status = 0;
int init() { return init_status; }
const char* error_string(int) { return "Driver Not Loaded"; }
int driver_version(char* text, unsigned length) {
  std::strncpy(text, "580.95.05", length);
  return 0;
}
int by_uuid(const char* uuid, void** device) {
  if (std::string{uuid} != "GPU-1") return 6;
  *device = &only_gpu;
  return 0;
}
int clock(void* device, unsigned type, unsigned* mhz) {
  if (device != &only_gpu) return 2;
  *mhz = type == 1 ? 1455 : type == 2 ? 3201 : 0;
  return 0;
}
int power(void*, unsigned* milliwatts) { return *milliwatts = 681'500, 0; }
int temperature(void*, unsigned sensor, unsigned* value) { return *value = sensor == 0 ? 64 : 0, 0; }
int throttle(void*, unsigned long long* bits) { return *bits = 4, 0; }
int ecc_mode(void*, unsigned* current, unsigned* pending) { return *current = 1, *pending = 0, 0; }
int power_range(void*, unsigned* least, unsigned* most) { return *least = 200'000, *most = 700'000, 0; }
int refused(void*, unsigned*) { return 3; }
struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned a, b;
};
int processes(void*, unsigned* count, Process* list) {
  constexpr unsigned running = 100;  // more than a first guess holds
  const bool fits = *count >= running;
  *count = running;
  if (!fits) return 7;
  for (unsigned i = 0; i < running; ++i) list[i] = {1'000'000'000 + i, i == 0 ? ~0ull : 4096ull * i, 0, 0};
  return 0;
}
// Three links: to a switch, asleep, and one this board does not have.
int link_state(void*, unsigned link, unsigned* active) { return *active = link == 0 ? 1 : 0, link < 2 ? 0 : link < 3 ? 3 : 2; }
int link_version(void*, unsigned, unsigned* version) { return *version = 6, 0; }
int link_remote_type(void*, unsigned, unsigned* type) { return *type = 2, 0; }
struct PciInfo {
  char legacy[16];
  unsigned numbers[5];
  char address[32];
};
int link_remote_pci(void*, unsigned, PciInfo* pci) { return std::strcpy(pci->address, "00000000:C1:00.0"), 0; }
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  unsigned type;
  int status;
  unsigned long long value;
};
int field_values(void*, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    values[i].status = values[i].field == 164 ? 3 : 0;  // only the common speed is told
    values[i].value = 26'562;
  }
  return 0;
}
int cpu_affinity(void*, unsigned words, unsigned long* set) {
  if (words < 2) return 2;
  set[0] = 0b11;
  set[1] = 1;
  return 0;
}
int common_ancestor(void*, void*, unsigned* level) { return *level = 50, 0; }
}  // namespace fake

void* find(const char* name) {
  static const std::map<std::string, void*> functions = {
      {"nvmlInit_v2", reinterpret_cast<void*>(fake::init)},
      {"nvmlErrorString", reinterpret_cast<void*>(fake::error_string)},
      {"nvmlSystemGetDriverVersion", reinterpret_cast<void*>(fake::driver_version)},
      {"nvmlDeviceGetHandleByUUID", reinterpret_cast<void*>(fake::by_uuid)},
      {"nvmlDeviceGetClockInfo", reinterpret_cast<void*>(fake::clock)},
      {"nvmlDeviceGetPowerUsage", reinterpret_cast<void*>(fake::power)},
      {"nvmlDeviceGetTemperature", reinterpret_cast<void*>(fake::temperature)},
      {"nvmlDeviceGetCurrentClocksThrottleReasons", reinterpret_cast<void*>(fake::throttle)},
      {"nvmlDeviceGetEccMode", reinterpret_cast<void*>(fake::ecc_mode)},
      {"nvmlDeviceGetPowerManagementLimitConstraints", reinterpret_cast<void*>(fake::power_range)},
      {"nvmlDeviceGetPersistenceMode", reinterpret_cast<void*>(fake::refused)},
      {"nvmlDeviceGetComputeRunningProcesses_v3", reinterpret_cast<void*>(fake::processes)},
      {"nvmlDeviceGetNvLinkState", reinterpret_cast<void*>(fake::link_state)},
      {"nvmlDeviceGetNvLinkVersion", reinterpret_cast<void*>(fake::link_version)},
      {"nvmlDeviceGetNvLinkRemoteDeviceType", reinterpret_cast<void*>(fake::link_remote_type)},
      {"nvmlDeviceGetNvLinkRemotePciInfo_v2", reinterpret_cast<void*>(fake::link_remote_pci)},
      {"nvmlDeviceGetFieldValues", reinterpret_cast<void*>(fake::field_values)},
      {"nvmlDeviceGetCpuAffinity", reinterpret_cast<void*>(fake::cpu_affinity)},
      {"nvmlDeviceGetTopologyCommonAncestor", reinterpret_cast<void*>(fake::common_ancestor)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

TEST(NvmlTest, SamplesAGpu) {
  const Nvml nvml{find};
  ASSERT_TRUE(nvml.available()) << nvml.error();
  EXPECT_EQ(nvml.driver_version(), "580.95.05");
  const auto sample = nvml.device("GPU-1")->sample();
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->sm_clock_mhz, 1455);
  EXPECT_EQ(sample->memory_clock_mhz, 3201);
  EXPECT_DOUBLE_EQ(sample->power_w, 681.5);
  EXPECT_EQ(sample->temperature_c, 64);
  EXPECT_EQ(throttle_text(sample->throttle_reasons), "software power cap");
}

TEST(NvmlTest, LeavesOutWhatTheGpuDoesNotTell) {
  const Nvml nvml{find};
  const GpuCondition condition = nvml.device("GPU-1")->condition();
  EXPECT_EQ(condition.ecc, true);
  EXPECT_EQ(condition.ecc_pending, false);
  EXPECT_EQ(condition.power_limit_max_w, 700);
  EXPECT_EQ(condition.persistence, std::nullopt) << "refused by the driver";
  EXPECT_EQ(condition.mig_mode, std::nullopt) << "unknown to this library";
  EXPECT_EQ(condition.energy_counter, false);
  EXPECT_EQ(nvml.device("GPU-1")->energy_mj(), std::nullopt);
  EXPECT_FALSE(nvml.device("GPU-2"));
}

TEST(NvmlTest, ListsProcessesHoweverMany) {
  const auto processes = Nvml{find}.device("GPU-1")->compute_processes();
  ASSERT_EQ(processes.size(), 100u);
  EXPECT_EQ(processes[0].memory_bytes, 0u) << "not told";
  EXPECT_EQ(processes[2].memory_bytes, 8192u);
  EXPECT_EQ(processes[2].name, "") << "a process of another container";
}

TEST(NvmlTest, KnowsTheMemoryOfOneProcess) {
  const Nvml nvml{find};
  const auto device = nvml.device("GPU-1");
  EXPECT_EQ(device->memory_of_process(1'000'000'002), 8192u);
  EXPECT_EQ(device->memory_of_process(1'000'000'000), std::nullopt) << "not told";
  EXPECT_EQ(device->memory_of_process(7), std::nullopt) << "not on this GPU, or another container's numbers";
}

TEST(NvmlTest, DescribesLinks) {
  const Nvml nvml{find};
  std::string why_not;
  const std::vector<NvLink> links = nvml.device("GPU-1")->nvlinks(why_not);
  ASSERT_EQ(links.size(), 2u);
  EXPECT_EQ(why_not, "");
  EXPECT_TRUE(links[0].active);
  EXPECT_EQ(links[0].version, "4.0") << "6 in NVML's list of versions";
  EXPECT_EQ(links[0].bytes_s, 26'562'000'000u);
  EXPECT_EQ(links[0].remote, "NVSwitch");
  EXPECT_EQ(links[0].remote_pci, "0000:c1:00.0");
  EXPECT_FALSE(links[1].active);
  EXPECT_EQ(links[1].remote, "");
}

TEST(NvmlTest, SaysWhyThereAreNoLinks) {
  const auto reason = [](int (*state)(void*, unsigned, unsigned*)) {
    const Nvml nvml{[state](const char* name) {
      return std::string{name} == "nvmlDeviceGetNvLinkState" ? reinterpret_cast<void*>(state) : find(name);
    }};
    std::string why_not;
    EXPECT_TRUE(nvml.device("GPU-1")->nvlinks(why_not).empty());
    return why_not;
  };
  EXPECT_EQ(reason([](void*, unsigned, unsigned*) { return 3; }), "the driver reports no NVLink on this GPU");
  EXPECT_EQ(reason([](void*, unsigned, unsigned*) { return 15; }), "NVML does not tell: Driver Not Loaded");
  EXPECT_EQ(reason(nullptr), "this driver's NVML does not tell");
}

TEST(NvmlTest, PlacesAGpu) {
  const Nvml nvml{find};
  const NvmlDevice device = *nvml.device("GPU-1");
  EXPECT_THAT(device.nearest_cpus(), testing::ElementsAre(0, 1, 64));
  EXPECT_EQ(device.common_ancestor(device), 50);
}

TEST(NvmlTest, SaysWhyItIsOfNoUse) {
  fake::init_status = 9;
  EXPECT_EQ(Nvml{find}.error(), "NVML cannot be used: Driver Not Loaded");
  fake::init_status = 0;
  const Nvml empty{[](const char*) -> void* { return nullptr; }};
  EXPECT_FALSE(empty.available());
  EXPECT_FALSE(empty.device("GPU-1"));
  EXPECT_FALSE(empty.driver_version());
}

TEST(NvmlTest, OfThisMachineNeverThrows) {
  const Nvml& nvml = Nvml::get();
  EXPECT_EQ(nvml.available(), nvml.error().empty());
  EXPECT_FALSE(nvml.device("GPU-no-such-device"));
}

TEST(Throttling, IsPutInWords) {
  EXPECT_EQ(throttle_text(0), "");
  EXPECT_EQ(throttle_text(0x24), "software power cap, software thermal slowdown");
  EXPECT_EQ(throttle_text(0x10000), "a reason this version does not know");
  EXPECT_FALSE(slows_down(0x1)) << "idle is no fault";
  EXPECT_TRUE(slows_down(0x4));
  EXPECT_TRUE(slows_down(0x80));
}

}  // namespace
}  // namespace aisp::machine
