// SPDX-License-Identifier: Apache-2.0
#include "cli/output.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "cli/flags.hpp"
#include "cli/progress.hpp"
#include "cli/suite_flags.hpp"
#include "suite/made_up_machine.hpp"

namespace aisp::cli {
namespace {

TEST(Columns, AreAsWideAsTheirLongestCellAndCountCharacters) {
  EXPECT_EQ(columns({{"a", "b"}, {"long", "c"}}), "a     b\nlong  c\n");
  EXPECT_EQ(columns({{"µs", "x"}, {"abc", "y"}}), "µs   x\nabc  y\n");
  EXPECT_EQ(columns({}), "");
}

TEST(Columns, KeepEveryCellInItsLine) {
  EXPECT_EQ(columns({{"x\x1b]0;title\x07", "a\n::error::pwned"},
                     {"\xC2\x9B"
                      "2J",
                      "b\r"}}),
            "x ]0;title   a ::error::pwned\n 2J          b \n");
  EXPECT_EQ(columns({{base::Painter{true}(base::Style::red, "bad\n"), "x"}}), "\x1b[31mbad \x1b[0m  x\n");
}

TEST(ColorFlag, RejectsWhatItDoesNotKnow) {
  EXPECT_EQ(color_flag("never"), base::Color::never);
  EXPECT_THROW(color_flag("pink"), base::Error);
}

TEST(TargetList, SplitsAtCommasAndRefusesNothing) {
  EXPECT_EQ(target_list({.targets = {"ch01, ch02", "ch07:a"}}), (std::vector<std::string>{"ch01", "ch02", "ch07:a"}));
  EXPECT_EQ(target_list({.targets = {"ch01"}, .words = {"ch07:a,b", "c"}}),
            (std::vector<std::string>{"ch01", "ch07:a", "b", "c"}));
  EXPECT_TRUE(target_list({}).empty());
  EXPECT_THROW(target_list({.targets = {","}}), base::Error);
  EXPECT_THROW(target_list({.words = {","}}), base::Error);
}

TEST(DoingText, SaysHowFarSamplingIs) {
  EXPECT_EQ(doing_text({.stage = evidence::Stage::verify}), "verify");
  run::Progress progress{.stage = evidence::Stage::measurement,
                         .rounds = {.round = 3, .of = 20, .wanted_percent = 1, .spent_s = 0.2, .budget_s = 3}};
  EXPECT_EQ(doing_text(progress), "round 3 of 20, 0.2 of 3 s");
  progress.rounds.interval_percent = 1.81;
  EXPECT_EQ(doing_text(progress), "interval 1.8 % (until 1 %), 0.2 of 3 s");
  progress.rounds.spent_s = 3.2;
  EXPECT_EQ(doing_text(progress), "interval 1.8 % (until 1 %), 3.2 s, 3 s were planned");
  progress.rounds.wanted_percent = 0;
  EXPECT_EQ(doing_text(progress), "round 3 of 20, 3.2 s, 3 s were planned") << "the interval ends nothing";
}

constexpr Pair pair_on(Device device) {
  return {.teaches = "", .make = nullptr, .baseline = {"a"}, .optimized = variants({{"b"}}), .device = device};
}
constexpr Pair gpu_pair = pair_on(Device::gpu), host_pair = pair_on(Device::host);
constexpr pair::Entry on_gpu{"ch01", "a", "", &gpu_pair}, on_host{"ch03", "b", "", &host_pair};

suite::Task task_of(const std::vector<const pair::Entry*>& entries, machine::Machine machine) {
  suite::Task task;
  for (const machine::Gpu& gpu : machine.gpus) task.gpus.push_back(gpu.ordinal);
  task.placements = suite::place(entries, machine, task.gpus);
  task.machine = std::move(machine);
  task.configuration.budget_s = 3;
  return task;
}

TEST(Heading, SaysHowManyPairsOnWhichMachineAndHowLongAbout) {
  EXPECT_EQ(heading(task_of({&on_gpu}, suite::machine_with({{"NVIDIA H200", 90}}))), "1 pair on NVIDIA H200, about 5.0 s");
  EXPECT_EQ(heading(task_of({&on_gpu, &on_gpu, &on_host}, suite::machine_with({{"NVIDIA H200", 90}, {"NVIDIA H200", 90}}))),
            "3 pairs on 2 x NVIDIA H200 and the host, about 10 s")
      << "GPU pairs run side by side, the host's by itself";
  EXPECT_EQ(heading(task_of({&on_gpu, &on_gpu}, suite::machine_with({{"NVIDIA H200", 90}, {"NVIDIA L4", 89}}))),
            "2 pairs on NVIDIA H200, NVIDIA L4, about 5.0 s");
}

TEST(Heading, WithoutAGpuNamesTheProcessorAndWhatIsSkipped) {
  machine::Machine machine = suite::machine_with({});
  EXPECT_EQ(heading(task_of({&on_gpu, &on_host}, machine)), "1 pair on the host's 8 CPUs, 1 skipped, about 5.0 s");
  machine.host.cpu = "Example 9000";
  EXPECT_EQ(heading(task_of({&on_host}, machine)), "1 pair on Example 9000 (8 CPUs), about 5.0 s");
  EXPECT_EQ(heading(task_of({&on_gpu}, machine)), "0 pairs on Example 9000 (8 CPUs), 1 skipped");
}

TEST(Heading, GuessesNoTimeWherePartIsTakenOver) {
  suite::Task task = task_of({&on_gpu}, suite::machine_with({{"NVIDIA H200", 90}}));
  task.resumed = true;
  EXPECT_EQ(heading(task), "1 pair on NVIDIA H200");
}

TEST(TimeLeft, IsExpectedBeforeAPairHasEnded) {
  TimeLeft left{{{"a", 5}, {"b", 5}, {"c", 5}}, 1};
  EXPECT_EQ(left.text(3, 0), "15 s left");
  left.begun("a", 0);
  EXPECT_EQ(left.text(2, 2), "13 s left");
  EXPECT_EQ(TimeLeft{}.text(0, 0), "");
}

TEST(TimeLeft, LearnsFromWhatWasMeasured) {
  TimeLeft left{{{"a", 5}, {"b", 5}, {"c", 5}}, 1};
  left.begun("a", 0);
  left.ended("a", 20);
  EXPECT_EQ(left.text(2, 20), "40 s left") << "all take four times as long as expected";
}

TEST(TimeLeft, LearnsFromTheFirstRoundOfAPair) {
  TimeLeft left{{{"a", 5}, {"b", 5}}, 1};
  left.begun("a", 0);
  left.progressed("a", {.round = 1, .of = 20, .spent_s = 4, .budget_s = 3});
  EXPECT_EQ(left.text(1, 6), "2 min 38 s left") << "19 rounds of 4 s are left of this one, and the next takes 82 s too";
}

TEST(TimeLeft, IsSharedByTheGpus) {
  TimeLeft left{{{"a", 5}, {"b", 5}, {"c", 5}, {"d", 5}}, 2};
  EXPECT_EQ(left.text(4, 0), "10 s left");
}

}  // namespace
}  // namespace aisp::cli
