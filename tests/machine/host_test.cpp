// SPDX-License-Identifier: Apache-2.0
#include "machine/host.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "machine/fake_root.hpp"

namespace aisp::machine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CpuLists, AreReadAndWritten) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("rubbish,2"), ElementsAre(2));
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(CpuTimes, TellWhatAHypervisorTook) {
  FakeRoot root;
  root.file("proc/stat", "cpu  100 20 30 4000 50 6 7 10 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
  const auto before = read_cpu_times(root.path());
  ASSERT_TRUE(before);
  EXPECT_EQ(before->busy, 163u);
  EXPECT_EQ(before->stolen, 10u);
  const auto after = [&](std::uint64_t busy, std::uint64_t stolen) {
    return CpuTimes{.busy = before->busy + busy, .stolen = before->stolen + stolen};
  };
  EXPECT_EQ(stolen_time(*before, after(950, 50)),
            "the hypervisor gave 5 % of the CPU time that this machine asked for to others");
  EXPECT_EQ(stolen_time(*before, after(995, 5)), "");
  EXPECT_EQ(stolen_time(*before, *before), "") << "nothing was asked for";
  EXPECT_EQ(stolen_time({.busy = 100, .stolen = 10}, {.busy = 50, .stolen = 5}), "") << "counters that went back";
}

std::string process_stat(int pid, const std::string& name, int parent, int user, int user_of_children) {
  return fmt::format("{} ({}) S {} 1 1 0 -1 4194304 1 2 3 4 {} 70 {} 80 20 0 1 0 5 6 7\n", pid, name, parent, user,
                     user_of_children);
}

TEST(CpuTimes, TellOurProgramsFromOthers) {
  FakeRoot root;
  root.file("proc/stat", "cpu  1000 20 300 4000 50 6 7 10 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
  root.file("proc/10/stat", process_stat(10, "aisp", 1, 100, 40)).file("proc/11/stat", process_stat(11, "a) S 1 (b", 10, 30, 0));
  root.file("proc/12/stat", process_stat(12, "grandchild", 11, 5, 0)).file("proc/20/stat", process_stat(20, "other", 1, 9000, 0));
  root.file("proc/13/stat", "13 (gone").file("proc/14/stat", "").file("proc/self/stat", process_stat(10, "aisp", 1, 100, 40));
  const auto before = read_cpu_times(root.path(), 10);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->own, 175u);
  EXPECT_EQ(before->programs, 1020u);
  EXPECT_EQ(before->all, 5393u);
  const auto after = [&](std::uint64_t all, std::uint64_t programs, std::uint64_t own) {
    return CpuTimes{.all = before->all + all, .programs = before->programs + programs, .own = before->own + own};
  };
  EXPECT_EQ(time_of_others(*before, after(1000, 900, 400)), "other programs had 50 % of this machine's CPU time");
  EXPECT_EQ(time_of_others(*before, after(1000, 409, 400)), "") << "below one percent";
  EXPECT_EQ(time_of_others(*before, after(100, 54, 50)), "") << "a few ticks are the clock's error";
  EXPECT_EQ(time_of_others(*before, after(1000, 300, 400)), "") << "ticks are counted in two places at two times";
  EXPECT_EQ(time_of_others(*before, *before), "");
  EXPECT_EQ(time_of_others(after(1000, 900, 400), *before), "") << "counters that went back";
}

TEST(CpuTimes, OfThisVeryProcessCountAsOurs) {
  const auto before = read_cpu_times();
  if (!before) GTEST_SKIP() << "this kernel does not tell";
  volatile double sum = 0;
  for (auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds{300}; std::chrono::steady_clock::now() < end;)
    sum = sum + 1;
  const auto after = read_cpu_times();
  ASSERT_TRUE(after);
  EXPECT_GT(after->own, before->own);
}

TEST(CpuTimes, AreUnknownOfKernelsThatDoNotTell) {
  EXPECT_FALSE(read_cpu_times(FakeRoot{}.path()));
  FakeRoot old;
  old.file("proc/stat", "cpu  100 20 30 4000\n");
  EXPECT_FALSE(read_cpu_times(old.path()));
  FakeRoot rubbish;
  rubbish.file("proc/stat", "cpu  a b c d e f g h\n");
  EXPECT_FALSE(read_cpu_times(rubbish.path()));
}

TEST(Host, IsReadFromProcAndSys) {
  FakeRoot root;
  root.file("proc/sys/kernel/hostname", "node7\n").file("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
  root.file("etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\n");
  root.file("proc/cpuinfo",
            "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t: fpu\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n");
  root.file("sys/devices/system/cpu/online", "0-7\n").file("proc/self/status", "Name:\taisp\nCpus_allowed_list:\t2-3\n");
  root.file("proc/meminfo", "MemTotal:       1000000 kB\nMemFree:         1 kB\nMemAvailable:    600000 kB\n");
  root.file("sys/devices/system/node/online", "0-1\n");
  root.file("sys/devices/system/node/node0/cpulist", "0-3\n").file("sys/devices/system/node/node1/cpulist", "4-7\n");
  root.file("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       500000 kB\n");
  const Host host = read_host(root.path());
  EXPECT_EQ(host.hostname, "node7");
  EXPECT_THAT(host.kernel, testing::StartsWith("Linux 6.8.0-45-generic "));
  EXPECT_EQ(host.system, "Ubuntu 24.04.1 LTS");
  EXPECT_EQ(host.cpu, "AMD EPYC 9654");
  EXPECT_EQ(host.cpus_online, 8);
  EXPECT_EQ(host.cpus_usable, 2);
  EXPECT_EQ(host.memory_bytes, 1'000'000u * 1024);
  EXPECT_EQ(host.memory_available_bytes, 600'000u * 1024);
  ASSERT_EQ(host.numa.size(), 2u);
  EXPECT_THAT(host.numa[1].cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(host.numa[0].memory_bytes, 500'000u * 1024);
  EXPECT_EQ(host.container, "");
  EXPECT_EQ(host.virtualization, "");
}

TEST(Host, IsReadOnAKernelThatTellsNothing) {
  const FakeRoot root;
  const Host host = read_host(root.path());
  EXPECT_GT(host.cpus_usable, 0);
  EXPECT_THAT(host.numa, IsEmpty());
  EXPECT_EQ(host.cpu_quota, 0);
}

TEST(Host, OfThisVeryMachineMakesSense) {
  const Host host = read_host();
  EXPECT_GT(host.cpus_usable, 0);
  EXPECT_GE(host.cpus_online, host.cpus_usable);
  EXPECT_GT(host.memory_bytes, host.memory_available_bytes);
  EXPECT_GT(host.memory_available_bytes, 0u);
}

TEST(Quota, IsTheTightestOfAllGroupsAbove) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/pods/aisp\n").file("sys/fs/cgroup/pods/aisp/cpu.max", "max 100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 0);
  root.file("sys/fs/cgroup/pods/cpu.max", "250000 100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 2.5);
  root.file("sys/fs/cgroup/pods/aisp/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 1.5);
}

TEST(Quota, IsKnownToTheOldControlGroupsToo) {
  FakeRoot root;
  root.file("proc/self/cgroup", "4:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n");
  root.file("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n")
      .file("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 0);
  root.file("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(read_cpu_quota(root.path()), 4);
  root.file("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read_memory_limit(root.path()), std::nullopt);
  root.file("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(read_memory_limit(root.path()), 1073741824u);
}

TEST(Memory, AvailableIsWhatTheContainerLeaves) {
  FakeRoot root;
  root.file("proc/self/cgroup", "0::/\n").file("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n");
  root.file("sys/fs/cgroup/memory.max", "1000000000\n").file("sys/fs/cgroup/memory.current", "400000000\n");
  const Host host = read_host(root.path());
  EXPECT_EQ(host.memory_bytes, 1'000'000'000u);
  EXPECT_EQ(host.memory_available_bytes, 600'000'000u);
}

TEST(Containers, AreToldApart) {
  EXPECT_EQ(detect_container(FakeRoot{}.path()), "");
  EXPECT_EQ(detect_container(FakeRoot{}.file(".dockerenv", "").path()), "docker");
  EXPECT_EQ(detect_container(FakeRoot{}.file("run/.containerenv", "").path()), "podman");
  EXPECT_EQ(detect_container(FakeRoot{}.file("proc/1/cgroup", "0::/kubepods/pod1\n").file(".dockerenv", "").path()),
            "kubernetes");
  EXPECT_EQ(detect_container(FakeRoot{}.file("proc/version", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n").path()),
            "gvisor");
}

TEST(Virtualization, IsToldFromBareMetal) {
  EXPECT_EQ(detect_virtualization(FakeRoot{}.file("proc/cpuinfo", "flags : fpu vme\n").path()), "");
  EXPECT_EQ(detect_virtualization(FakeRoot{}.file("proc/cpuinfo", "flags : fpu hypervisor\n").path()), "virtual machine");
  EXPECT_EQ(detect_virtualization(FakeRoot{}.file("sys/class/dmi/id/sys_vendor", "QEMU\n").path()), "kvm");
  EXPECT_EQ(detect_virtualization(FakeRoot{}
                                      .file("proc/cpuinfo", "flags : fpu hypervisor\n")
                                      .file("proc/cmdline", "console=ttyS0 reboot=k panic=1 pci=off\n")
                                      .path()),
            "firecracker");
}

TEST(Driver, VersionIsReadWithoutNvml) {
  EXPECT_EQ(read_driver_version(FakeRoot{}.path()), "");
  FakeRoot root;
  root.file("proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\nGCC version:  gcc "
            "12.3.0\n");
  EXPECT_EQ(read_driver_version(root.path()), "580.95.05");
}

TEST(Pci, NodesAreRead) {
  FakeRoot root;
  root.file("sys/bus/pci/devices/0000:4b:00.0/numa_node", "1\n");
  EXPECT_EQ(pci_numa_node(root.path(), "0000:4B:00.0"), 1);
  EXPECT_EQ(pci_numa_node(root.path(), "0000:04:00.0"), -1);
}

}  // namespace
}  // namespace aisp::machine
