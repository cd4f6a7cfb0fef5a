// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/fingerprint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::evidence {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

PairResult gpu_pair() {
  PairResult pair{.bound = Bound::compute, .device = Device::gpu};
  pair.gpus = {"GPU-1"};
  return pair;
}

Manifest machine() {
  Manifest manifest{.driver_version = "580.95.05",
                    .runtime_cuda_version = 13010,
                    .library_versions = {{"cublas", "13.1.0"}},
                    .cpu = "Some CPU",
                    .virtualization = "kvm",
                    .cpus_usable = 16,
                    .numa_nodes = 2};
  manifest.memory_bytes = (std::uint64_t{128} << 30) - 12345678;
  manifest.gpus = {{.ordinal = 0, .name = "NVIDIA H200", .uuid = "GPU-1", .power_limit_w = 700},
                   {.ordinal = 1, .name = "NVIDIA H200", .uuid = "GPU-2", .power_limit_w = 700},
                   {.ordinal = 2, .name = "NVIDIA L40S", .uuid = "GPU-3", .power_limit_w = 350},
                   {.ordinal = 3, .name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb", .uuid = "MIG-1"}};
  return manifest;
}

TEST(HardwareKey, IsOfTheGpusThatThePairUsed) {
  PairResult pair = gpu_pair();
  const auto key = [&](std::vector<std::string> gpus) {
    pair.gpus = std::move(gpus);
    return hardware_key(pair, machine());
  };
  EXPECT_EQ(key({"GPU-1"}), "h200");
  EXPECT_EQ(key({"GPU-3"}), "l40s") << "another GPU of the same machine";
  EXPECT_EQ(key({"GPU-1", "GPU-2"}), "2x_h200");
  EXPECT_EQ(key({"GPU-3", "GPU-1"}), "h200_and_l40s");
  EXPECT_EQ(key({"MIG-1"}), "h100_80gb_hbm3_mig_1g_10gb");
  EXPECT_EQ(key({}), "");
  EXPECT_EQ(key({"GPU-1", "GPU-9"}), "") << "a GPU that the manifest does not know";
  pair.device = Device::host;
  EXPECT_EQ(hardware_key(pair, machine()), "host");
}

TEST(Fingerprint, InAMergedRunIsOfTheMachineThatTheResultNames) {
  Manifest other = machine();
  other.cpu = "Another CPU";
  other.machine = "b";
  other.gpus = {{.ordinal = 0, .name = "NVIDIA L40S", .uuid = "GPU-1"}};
  Manifest merged;
  merged.machines = {machine(), other};
  merged.machines[0].machine = "a";
  PairResult pair = gpu_pair();
  pair.machine = "a";
  EXPECT_EQ(fingerprint_of(pair, merged).cpu, "Some CPU");
  EXPECT_EQ(hardware_key(pair, merged), "h200");
  pair.machine = "b";
  EXPECT_EQ(fingerprint_of(pair, merged).cpu, "Another CPU");
  EXPECT_EQ(hardware_key(pair, merged), "l40s");
}

TEST(Fingerprint, HoldsTheHostAndTheGpu) {
  const Fingerprint fingerprint = fingerprint_of(gpu_pair(), machine());
  EXPECT_EQ(fingerprint.hardware, "h200");
  EXPECT_EQ(fingerprint.cpus_usable, 16);
  EXPECT_EQ(fingerprint.numa_nodes, 2);
  EXPECT_EQ(fingerprint.hypervisor, "kvm");
  EXPECT_EQ(fingerprint.memory_bytes, std::uint64_t{128} << 30);
  EXPECT_EQ(fingerprint.driver, "580.95.05");
  EXPECT_EQ(fingerprint.cuda, "13.1");
  EXPECT_EQ(fingerprint.power_limit_w, 700);
  EXPECT_EQ(fingerprint.libraries.at("cublas"), "13.1.0");
  const Fingerprint host = fingerprint_of({.device = Device::host}, machine());
  EXPECT_EQ(host.gpu + host.driver + host.cuda, "");
  EXPECT_NE(id_of(host), id_of(fingerprint));
  EXPECT_EQ(id_of(fingerprint), id_of(fingerprint_of(gpu_pair(), machine())));
  EXPECT_EQ(id_of(fingerprint).size(), 12u);
}

TEST(Fingerprint, HostsDifferByWhatDecidesTimes) {
  const Fingerprint recorded = fingerprint_of(gpu_pair(), machine());
  const auto differences = [&](auto change) {
    Manifest manifest = machine();
    change(manifest);
    return host_differences(recorded, fingerprint_of(gpu_pair(), manifest));
  };
  EXPECT_THAT(differences([](Manifest&) {}), IsEmpty());
  EXPECT_THAT(differences([](Manifest& m) { m.driver_version = "590"; }), IsEmpty()) << "an update is no other machine";
  EXPECT_THAT(differences([](Manifest& m) { m.hostname = "another"; }), IsEmpty()) << "containers have names of their own";
  EXPECT_THAT(differences([](Manifest& m) { m.memory_bytes -= std::uint64_t{2} << 30; }), IsEmpty());
  EXPECT_THAT(differences([](Manifest& m) { m.cpus_usable = 2; }), ElementsAre("16 usable CPUs, now 2"));
  EXPECT_THAT(differences([](Manifest& m) { m.numa_nodes = 1; }), ElementsAre("2 NUMA nodes, now 1"));
  EXPECT_THAT(differences([](Manifest& m) { m.virtualization.clear(); }), ElementsAre("hypervisor kvm, now none"));
  EXPECT_THAT(differences([](Manifest& m) { m.cpu = "Other CPU"; }), ElementsAre("Some CPU, now Other CPU"));
  EXPECT_THAT(differences([](Manifest& m) { m.memory_bytes /= 2; }), ElementsAre("128 GiB of memory, now 64"));
  EXPECT_EQ(host_differences({}, recorded).size(), 1u) << "nobody knows the host of old records";
}

TEST(Fingerprint, SaysWhatElseDiffers) {
  Manifest manifest = machine();
  manifest.driver_version = "590.1";
  manifest.gpus[0].power_limit_w = 500;
  manifest.library_versions = {{"cublas", "13.2.0"}, {"nccl", "2.28.7"}};
  EXPECT_THAT(gpu_differences(fingerprint_of(gpu_pair(), machine()), fingerprint_of(gpu_pair(), manifest)),
              ElementsAre("driver 580.95.05, now 590.1", "power limit 700 W, now 500 W", "cublas 13.1.0, now 13.2.0"));
}

}  // namespace
}  // namespace aisp::evidence
