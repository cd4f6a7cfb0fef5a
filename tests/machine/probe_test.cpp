// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/interrupt.hpp"
#include "machine/fake_root.hpp"
#include "machine/machine.hpp"
#include "places.hpp"

namespace aisp::machine {
namespace {

using testing::HasSubstr;

// A program in place of the probe's child.
class FakeProbe {
 public:
  explicit FakeProbe(const std::string& script) : path_{root_.path() / "probe"} {
    root_.file("probe", "#!/bin/sh\n" + script);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  Machine answer(double limit_s = 10) const { return probe(limit_s, path_.string()); }

 private:
  FakeRoot root_;
  std::filesystem::path path_;
};

TEST(Probe, BringsTheWholeMachineThroughThePipe) {
  Machine machine = machine_with({h200(), h200()});
  machine.gpus[1].condition =
      GpuCondition{.sm_clock_mhz = 1980, .power_w = 71.5, .throttle_reasons = 1, .ecc = true, .processes = {{42, "python", 7}}};
  machine.host.numa = {{0, {0, 1}, 1000}};
  FakeRoot answers;
  answers.file("answer", nlohmann::json(machine).dump());
  const Machine back = FakeProbe{"[ \"$1\" = __probe ] && cat " + (answers.path() / "answer").string() + " >&3\n"}.answer();
  EXPECT_EQ(nlohmann::json(back), nlohmann::json(machine));
  ASSERT_EQ(back.gpus.size(), 2u);
  EXPECT_TRUE(back.gpus[0].peers[1]);
  EXPECT_EQ(back.gpus[0].attribute(cudaDevAttrClusterLaunch), 1);
  EXPECT_EQ(back.gpus[1].condition->processes[0].name, "python");
  EXPECT_FALSE(back.gpus[1].condition->temperature_c.has_value());
  EXPECT_FALSE(back.gpus[0].condition.has_value());
}

TEST(Probe, SaysThatTheDriverHangs) {
  const double before = base::monotonic_s();
  const Machine machine = FakeProbe{"trap '' TERM; while :; do sleep 0.1; done\n"}.answer(0.3);
  EXPECT_THAT(machine.gpus, testing::IsEmpty());
  EXPECT_EQ(machine.cuda_error, "the CUDA driver did not answer within 300 ms");
  EXPECT_THAT(machine.cuda_advice, HasSubstr("nvidia-smi"));
  EXPECT_GT(machine.host.cpus_usable, 0) << "what needs no driver is known all the same";
  EXPECT_LT(base::monotonic_s() - before, 10);
}

TEST(Probe, CanBeInterruptedWhileTheDriverHangs) {
  base::install_interrupt_handlers();
  ::raise(SIGTERM);
  const double before = base::monotonic_s();
  try {
    FakeProbe{"exec sleep 60\n"}.answer(60);
    ADD_FAILURE() << "it gave an answer";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::interrupted);
  }
  base::reset_interrupt();
  EXPECT_LT(base::monotonic_s() - before, 30);
}

TEST(Probe, SaysThatTheDriverCrashes) {
  EXPECT_EQ(FakeProbe{"kill -SEGV $$\n"}.answer().cuda_error,
            "the CUDA driver crashed the process that asked it (killed by SIGSEGV)");
}

TEST(Probe, SaysThatNothingSensibleCame) {
  EXPECT_THAT(FakeProbe{"exit 3\n"}.answer().cuda_error, HasSubstr("gave no answer (exit status 3)"));
  EXPECT_THAT(FakeProbe{"echo '{\"gpus\": 7}' >&3\n"}.answer().cuda_error, HasSubstr("unreadable answer"));
  EXPECT_THAT(probe(1, "/no/such/program").cuda_error, HasSubstr("/no/such/program"));
}

TEST(Probe, StartsTheExecutableThatTheEnvironmentNames) {
  const std::string built = aisp_path();
  ::setenv("AISP_PATH", "/no/such/program", 1);
  EXPECT_THAT(probe(1, aisp_path()).cuda_error, HasSubstr("/no/such/program"));
  ::unsetenv("AISP_PATH");
  EXPECT_EQ(aisp_path(), built);
  ::setenv("AISP_PATH", built.c_str(), 1);
}

TEST(Probe, AnswersTruthfullyHere) {
  if (::access(aisp_path().c_str(), X_OK) != 0) GTEST_SKIP() << "no aisp built";
  const Machine machine = probe(60, aisp_path());
  if (machine.gpus.empty()) {
    EXPECT_NE(machine.cuda_error, "");
    EXPECT_NE(machine.cuda_advice, "");
  } else {
    EXPECT_EQ(machine.cuda_error, "");
    EXPECT_GT(machine.gpus[0].sm, 0);
    EXPECT_THAT(machine.gpus[0].uuid, testing::MatchesRegex("(GPU|MIG)-[0-9a-f-]+"));
  }
  EXPECT_GT(machine.host.cpus_usable, 0);
}

TEST(Probe, VisibleDevicesThatCudaCannotTake) {
  EXPECT_EQ(fault_of_visible_devices("0,0"), "names 0 twice");
  EXPECT_EQ(fault_of_visible_devices("1, 2,1"), "names 1 twice");
  EXPECT_EQ(fault_of_visible_devices("GPU-12,GPU-12"), "names GPU-12 twice");
  for (const char* good : {"", "0", "0,1", "-1", "-1,-1", "none,none", "GPU-1,GPU-2", "1,10"})
    EXPECT_EQ(fault_of_visible_devices(good), "") << good;
}

TEST(HardwareKey, CountsAndTellsKindsApart) {
  const Machine machine = machine_with({h200(), h200(), other_gpu("NVIDIA L40S", 89)});
  EXPECT_EQ(hardware_key(machine, {0}), "h200");
  EXPECT_EQ(hardware_key(machine, {0, 1}), "2x_h200");
  EXPECT_EQ(hardware_key(machine, {0, 2}), "h200_and_l40s");
  EXPECT_EQ(hardware_key(machine_with({other_gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 90)}), {0}), "h100_80gb_hbm3_mig_1g_10gb");
  EXPECT_EQ(hardware_key(machine, {}), "host");
}

}  // namespace
}  // namespace aisp::machine
