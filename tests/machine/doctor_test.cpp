// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <aisp/library.hpp>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "machine/fake_root.hpp"
#include "machine/library/library_search.hpp"

namespace aisp::machine {
namespace {

using testing::HasSubstr;

GpuCondition healthy() {
  return {.sm_clock_mhz = 1980,
          .sm_clock_max_mhz = 1980,
          .memory_clock_mhz = 3201,
          .memory_clock_max_mhz = 3201,
          .power_w = 70,
          .power_limit_w = 700,
          .power_limit_default_w = 700,
          .power_limit_max_w = 700,
          .temperature_c = 30,
          .throttle_reasons = 0,
          .ecc = true,
          .ecc_pending = true,
          .persistence = true,
          .mig_mode = false,
          .ecc_corrected = 0,
          .ecc_uncorrected = 0,
          .utilization_percent = 0,
          .energy_counter = true,
          .pcie_generation_max = 5,
          .pcie_width = 16,
          .pcie_width_max = 16,
          .compute_mode = 0};
}

class Doctor : public testing::Test {
 protected:
  Doctor() : machine_{machine_with({h200()})} {
    machine_.gpus[0].condition = healthy();
    root_.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root_.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    root_.file("proc/self/limits", limits("unlimited", "65536"));
    root_.file("proc/driver/nvidia/params", "RmProfilingAdminOnly: 0\n").file("dev/shm/x", "");
  }
  static std::string limits(const std::string& locked, const std::string& files) {
    return "Limit                     Soft Limit           Hard Limit           Units     \n"
           "Max open files            " +
           files +
           "                524288               files     \n"
           "Max locked memory         " +
           locked + "            unlimited            bytes     \n";
  }
  std::vector<Diagnosis> findings() {
    return examine(
        machine_,
        {.root = root_.path(),
         .artifacts = artifacts_.empty() ? root_.path() : artifacts_,
         .find_library = [this](Library library) { return libraries_ ? "/x/" + machine::file_names(library).front() : ""; },
         .cutlass_refusal = cutlass_refusal_,
         .toolkit = toolkit_,
         .built = built_,
         .assembles_tcgen05 = assembles_,
         .tcgen05_product = [this](int) { return product_; }});
  }
  Diagnosis finding(const std::string& name) {
    for (const Diagnosis& found : findings())
      if (found.name == name) return found;
    ADD_FAILURE() << "nothing about " << name;
    return {};
  }
  GpuCondition& gpu() { return *machine_.gpus[0].condition; }

  FakeRoot root_;
  Machine machine_;
  std::filesystem::path artifacts_;
  bool libraries_ = true;
  std::string cutlass_refusal_;
  std::string toolkit_ = "13.0 in /usr/local/cuda", built_;
  std::function<bool(std::string_view)> assembles_;
  std::optional<std::string> product_;
};

TEST_F(Doctor, SaysWhatAContainerGrants) {
  EXPECT_EQ(finding("memory").what, "100 GiB of 128 GiB available");
  root_.file("proc/self/cgroup", "0::/pod\n").file("sys/fs/cgroup/pod/memory.max", "17179869184\n");
  machine_.host.memory_available_bytes = std::uint64_t{12} << 30;
  EXPECT_EQ(finding("memory").what, "12 GiB of 128 GiB available, 16 GiB granted by the container's limit");
}

TEST_F(Doctor, ExaminesNothingWithoutProc) {
  std::filesystem::remove_all(root_.path() / "proc");
  const auto all = findings();
  ASSERT_EQ(all.size(), 1u) << "what is read there would be missed: driver, memory, limits";
  EXPECT_EQ(all[0].level, Level::problem);
  EXPECT_THAT(all[0].what, HasSubstr("not mounted"));
  EXPECT_THAT(all[0].advice, HasSubstr("mount"));
}

TEST_F(Doctor, SaysWhatTheControlGroupDid) {
  EXPECT_EQ(finding("control group").what, "no limit of CPU time, memory or processes");
  root_.file("proc/self/cgroup", "0::/pods/aisp\n").file("sys/fs/cgroup/pods/memory.max", "17179869184\n");
  root_.file("sys/fs/cgroup/pods/aisp/pids.max", "4096\n").file("sys/fs/cgroup/pods/pids.max", "max\n");
  machine_.host.cpu_quota = 2.5;
  EXPECT_EQ(finding("control group").what, "at most 2.50 of 16 CPUs' time, 16 GiB of 128 GiB memory, 4096 processes and threads");
  EXPECT_EQ(finding("control group").level, Level::ok);
  root_.file("sys/fs/cgroup/pods/aisp/cpu.stat", "usage_usec 1\nnr_periods 400\nnr_throttled 12\nthrottled_usec 5\n");
  root_.file("sys/fs/cgroup/pods/memory.events", "low 0\noom 1\noom_kill 1\n");
  EXPECT_THAT(finding("control group").what,
              testing::EndsWith("; the CPU quota was used up in 12 of 400 periods; 1 program killed for memory"));
  EXPECT_EQ(finding("control group").level, Level::warning);
}

TEST_F(Doctor, FindsNothingWrongWithAHealthyMachine) {
  for (const Diagnosis& found : findings())
    EXPECT_LT(found.level, Level::warning) << found.name << ": " << found.what << " -> " << found.advice;
  EXPECT_EQ(finding("driver").what, "580.95.05, supports CUDA 13.0");
  EXPECT_THAT(finding("GPU 0").what, HasSubstr("NVIDIA H200, sm_90, 132 SMs, 140 GiB"));
  EXPECT_EQ(finding("GPUs").what, "1 GPU, hardware key h200");
}

TEST_F(Doctor, SeesThatOthersUseTheProcessors) {
  root_.file("proc/loadavg", "0.52 9.58 9.59 1/600 12345\n");
  EXPECT_EQ(finding("load").level, Level::ok);
  root_.file("proc/loadavg", "2.10 0.58 0.59 4/600 12345\n");
  EXPECT_EQ(finding("load").level, Level::warning);
  EXPECT_EQ(finding("load").what, "2.10 of 16 CPUs wanted in the last minute");
  machine_.host.cpus_online = 192;
  EXPECT_EQ(finding("load").level, Level::ok) << "a hundredth of the machine";
  root_.file("proc/loadavg", "nonsense");
  EXPECT_EQ(finding("load").level, Level::info);
}

TEST_F(Doctor, SaysWhereNoRunCanBeWritten) {
  EXPECT_EQ(finding("disk").level, Level::ok);
  root_.file("a_file", "");
  artifacts_ = root_.path() / "a_file";
  EXPECT_THAT(finding("disk").what, testing::EndsWith("a_file is no folder"));
  artifacts_ = root_.path() / "a_file/below/it";
  EXPECT_EQ(finding("disk").level, Level::warning);
  artifacts_ = "/usr/artifacts/below";
  constexpr uid_t nobody = 65534;
  const uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(nobody), 0);
  }
  const Diagnosis found = finding("disk");
  if (user == 0) {
    ASSERT_EQ(::seteuid(user), 0);
  }
  EXPECT_EQ(found.level, Level::warning);
  EXPECT_EQ(found.what, "/usr cannot be written");
}

TEST_F(Doctor, NamesTheKeyOfEveryKindOfGpu) {
  machine_ = machine_with({h200(), h200(1), other_gpu("NVIDIA H200 NVL", 90), other_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 80)});
  EXPECT_EQ(finding("GPUs").what, "4 GPUs, hardware keys a100_sxm4_40gb_mig_1g_5gb, h200, h200_nvl");
}

TEST_F(Doctor, SaysWhatToDoAboutEveryFault) {
  gpu() = {};
  gpu().ecc = gpu().ecc_pending = false;
  gpu().sm_clock_mhz = 300;
  gpu().sm_clock_max_mhz = 1980;
  gpu().throttle_reasons = 0x40;
  gpu().power_limit_w = 400;
  gpu().power_limit_default_w = 700;
  gpu().temperature_c = 92;
  gpu().persistence = false;
  gpu().compute_mode = 2;
  gpu().processes = {{77, "python3", 1 << 30}};
  gpu().pcie_width = 4;
  gpu().pcie_width_max = 16;
  machine_.driver_version = "550.54.15";
  machine_.driver_cuda_version = 12040;
  machine_.host.cpu_quota = 2;
  machine_.host.memory_available_bytes = 1 << 30;
  libraries_ = false;
  toolkit_ = "12.4 in /usr/local/cuda";
  root_.file("proc/self/limits", limits("65536", "256"));
  root_.file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  root_.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  std::filesystem::remove_all(root_.path() / "dev");
  std::size_t faults = 0;
  for (const Diagnosis& found : findings()) {
    if (found.level < Level::warning) continue;
    ++faults;
    EXPECT_NE(found.advice, "") << found.name << ": " << found.what;
  }
  EXPECT_EQ(worst(findings()), Level::problem);
  EXPECT_EQ(finding("driver").level, Level::problem);
  EXPECT_THAT(finding("GPU 0 clocks").what, HasSubstr("300 of 1980 MHz, held back: hardware thermal slowdown"));
  EXPECT_THAT(finding("GPU 0 power").advice, HasSubstr("nvidia-smi -pl 700"));
  EXPECT_THAT(finding("GPU 0 processes").what, HasSubstr("python3 77 (1 GiB)"));
  EXPECT_EQ(finding("GPU 0 compute mode").level, Level::problem);
  EXPECT_THAT(finding("GPU 0 PCIe").what, HasSubstr("x4 of x16"));
  EXPECT_THAT(finding("CPUs").what, HasSubstr("2.00 by the container's quota"));
  EXPECT_EQ(finding("/dev/shm").level, Level::warning);
  EXPECT_EQ(finding("library cuBLAS").level, Level::info);
  for (const char* name : {"toolkit", "GPU 0 temperature", "GPU 0 persistence", "memory", "transparent huge pages",
                           "CPU governor", "locked memory", "open files"})
    EXPECT_EQ(finding(name).level, Level::warning) << name;
  EXPECT_GE(faults, 15u);
}

TEST_F(Doctor, TakesAMachineWithoutGpuAsItIs) {
  machine_ = machine_without_gpu();
  EXPECT_LT(worst(findings()), Level::problem);
  EXPECT_EQ(finding("GPUs").what, "no CUDA device: no NVIDIA driver");
  EXPECT_THAT(finding("GPUs").advice, HasSubstr("host pairs run"));
  EXPECT_EQ(finding("driver").level, Level::info);
}

TEST_F(Doctor, SeesAProblemInADriverWithoutGpu) {
  machine_.gpus.clear();
  machine_.cuda_error = "the CUDA driver did not answer within 60 s";
  machine_.cuda_advice = "look at nvidia-smi";
  EXPECT_EQ(finding("GPUs").level, Level::problem);
}

TEST_F(Doctor, DistrustsMemoryWithErrors) {
  gpu().ecc_uncorrected = 2;
  EXPECT_EQ(finding("GPU 0 ECC").level, Level::problem);
  EXPECT_EQ(finding("GPU 0 ECC").what, "2 uncorrected errors since the driver was loaded");
}

TEST_F(Doctor, ExplainsTcgen05OfEveryFamily) {
  const auto answer = [this](int sm) {
    machine_.gpus[0].sm = sm;
    return finding("GPU 0 tcgen05").what;
  };
  EXPECT_THAT(answer(90), testing::StartsWith("no: sm_90"));
  for (const int sm : {100, 103, 110}) EXPECT_THAT(answer(sm), HasSubstr("has tcgen05 and tensor memory")) << sm;
  for (const int sm : {120, 121})
    EXPECT_THAT(answer(sm), testing::AllOf(testing::StartsWith("no: sm_12"), HasSubstr("neither tcgen05 nor tensor memory")))
        << sm;
}

TEST_F(Doctor, MissesCodeForAGpu) {
  built_ = "90a-real";
  for (const Diagnosis& found : findings()) EXPECT_NE(found.name, "GPU 0 code");
  machine_.gpus[0].sm = 100;
  EXPECT_EQ(finding("GPU 0 code").level, Level::problem);
  EXPECT_EQ(finding("GPU 0 code").what, "this executable has no code for sm_100a (it has 90a-real)");
  EXPECT_THAT(finding("GPU 0 code").advice, HasSubstr("all-architectures"));
  EXPECT_THAT(finding("GPU 0 tcgen05").what, HasSubstr("has tcgen05 and tensor memory, but this executable has no code"));
}

TEST_F(Doctor, TellsWhatCameOfAProduct) {
  machine_.gpus[0].sm = 100;
  product_ = "";
  EXPECT_THAT(finding("GPU 0 tcgen05").what, testing::EndsWith("a product on it is right"));
  product_ = "row 0, column 0 is 3 instead of 4";
  EXPECT_EQ(finding("GPU 0 tcgen05").level, Level::problem);
  EXPECT_THAT(finding("GPU 0 tcgen05").what, testing::EndsWith("but a product on it failed: row 0, column 0 is 3 instead of 4"));
}

TEST_F(Doctor, AsksTheAssembler) {
  assembles_ = [](std::string_view target) { return target != "sm_120a" && target != "sm_121a"; };
  EXPECT_EQ(
      finding("toolkit tcgen05").what,
      "assembled for sm_100a, sm_103a, sm_110a; refused for sm_120a, sm_121a, which have neither tcgen05 nor tensor memory");
  assembles_ = [](std::string_view) { return false; };
  EXPECT_EQ(finding("toolkit tcgen05").what, "refused for sm_100a, sm_103a, sm_110a");
  EXPECT_THAT(finding("toolkit tcgen05").advice, HasSubstr("CUDA 13.0"));
}

TEST_F(Doctor, IsNotStoppedByAnAssemblerThatCannotBeStarted) {
  int calls = 0;
  assembles_ = [&calls](std::string_view) -> bool {
    ++calls;
    throw base::Error{base::Exit::unfit, "cannot start /cuda/bin/ptxas: Permission denied"};
  };
  EXPECT_EQ(finding("toolkit tcgen05").level, Level::warning);
  EXPECT_EQ(finding("toolkit tcgen05").what, "cannot start /cuda/bin/ptxas: Permission denied");
  calls = 0;
  findings();
  EXPECT_EQ(calls, 1) << "each that hangs takes its time";
}

TEST_F(Doctor, SaysWhyCutlassLibraryIsNotUsed) {
  EXPECT_EQ(finding("library CUTLASS").what, "/x/libaisp_cutlass.so");
  cutlass_refusal_ = "/x/libaisp_cutlass.so has interface 7 and this executable needs 1";
  EXPECT_EQ(finding("library CUTLASS").level, Level::warning);
  EXPECT_EQ(finding("library CUTLASS").what, cutlass_refusal_);
  EXPECT_THAT(finding("library CUTLASS").advice, HasSubstr("./setup.sh --cutlass"));
  libraries_ = false;
  EXPECT_EQ(finding("library CUTLASS").level, Level::info);
  EXPECT_THAT(finding("library CUTLASS").advice, HasSubstr("./setup.sh --cutlass"));
}

TEST_F(Doctor, MissesPeerAccess) {
  machine_ = machine_with({h200(), h200()});
  EXPECT_EQ(finding("peer access").level, Level::ok);
  machine_.gpus[0].peers[1] = false;
  EXPECT_EQ(finding("peer access").what, "1 of 2 directions");
}

TEST_F(Doctor, SeesOthersAtWorkInOtherContainers) {
  gpu().utilization_percent = 80;
  EXPECT_THAT(finding("GPU 0 processes").what, HasSubstr("80 % busy"));
}

TEST_F(Doctor, ReadsTheToolkitsOwnVersion) {
  root_.file("usr/local/cuda/include/cuda.h", "/* x */\n#define CUDA_VERSION 13010\n");
  const auto all = examine(machine_, {.root = root_.path(), .find_library = [](Library) { return std::string{}; }});
  bool seen = false;
  for (const Diagnosis& found : all) seen = seen || (found.name == "toolkit" && found.what.starts_with("13.1 in "));
  EXPECT_TRUE(seen);
}

TEST(DoctorHere, HasAnAnswerOnEveryMachine) {
  Machine machine = machine_without_gpu();
  const auto all = examine(machine);
  EXPECT_GT(all.size(), 10u);
  for (const Diagnosis& found : all) {
    EXPECT_NE(found.what, "") << found.name;
    EXPECT_TRUE(found.level < Level::warning || !found.advice.empty()) << found.name;
  }
}

}  // namespace
}  // namespace aisp::machine
