// SPDX-License-Identifier: Apache-2.0
// ncu and nsys as scripts that behave well, badly or not at all.
#include "profile/tools.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/system/clock.hpp"
#include "base/system/files.hpp"

namespace aisp::profile {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

// Writes a report, or prints the metrics of one with --import.
constexpr const char* good_ncu = R"(
if [ "$1" = --import ]; then
  echo '==PROF== reading'
  echo '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"'
  echo '"","","byte","byte","ns"'
  echo '"0","copy","1,000","500","2000"'
  exit 0
fi
echo "$@" > arguments.txt
while [ $# -gt 0 ]; do [ "$1" = --export ] && echo report > "$2"; shift; done
)";

// Gone, or dead and only not yet collected by init.
bool ends_within(const std::string& pid, double limit_s) {
  const double began_s = base::monotonic_s();
  while (base::monotonic_s() - began_s < limit_s) {
    const auto status = base::try_read_file("/proc/" + pid + "/status");
    if (!status || status->find("State:\tZ") != std::string::npos) return true;
    base::sleep_s(0.05);
  }
  return false;
}

class Tools : public testing::Test {
 protected:
  Tools() : old_path_{std::getenv("PATH")} { setenv("PATH", (scratch_.path().string() + ":/usr/bin:/bin").c_str(), 1); }
  ~Tools() override { setenv("PATH", old_path_.c_str(), 1); }

  void install(const std::string& tool, const std::string& script) const {
    const fs::path path = scratch_.path() / tool;
    std::ofstream{path} << "#!/bin/sh\ncd " << scratch_.path().string() << "\n" << script;
    fs::permissions(path, fs::perms::owner_all);
  }
  ToolRun tool_run(double limit_s = 20) const {
    return {.program = {"/usr/bin/true", "variant"}, .report = scratch_.path() / "tiled", .limit_s = limit_s, .interrupted = {}};
  }

  base::ScratchDirectory scratch_{"aisp-tools-", fs::temp_directory_path()};
  std::string old_path_;
};

TEST_F(Tools, NcuLeavesAReportAndItsMetrics) {
  install("ncu", good_ncu);
  const ToolOutcome outcome = run_ncu(tool_run(), MetricSet::deep);
  EXPECT_THAT(outcome.failure, IsEmpty());
  EXPECT_EQ(outcome.report, scratch_.path() / "tiled.ncu-rep");
  EXPECT_EQ(outcome.counters.source, "ncu");
  EXPECT_EQ(evidence::dram_bytes(outcome.counters), 1500.0);
  EXPECT_FALSE(outcome.counters.drained);
}

TEST_F(Tools, NcuLeavesClocksAloneAndCountsTheMarkedExecutionOnly) {
  install("ncu", good_ncu);
  run_ncu(tool_run(), MetricSet::deep);
  const std::string arguments = base::read_file(scratch_.path() / "arguments.txt");
  EXPECT_THAT(arguments, HasSubstr("--clock-control none"));
  EXPECT_THAT(arguments, HasSubstr("--profile-from-start off"));
  EXPECT_THAT(arguments, HasSubstr("/usr/bin/true variant"));
}

TEST_F(Tools, AbsentToolsAreOneLine) {
  setenv("PATH", scratch_.path().c_str(), 1);
  EXPECT_THAT(run_ncu(tool_run(), MetricSet::full).failure, HasSubstr("ncu is not on PATH"));
  EXPECT_THAT(run_nsys(tool_run()).failure, HasSubstr("nsys is not on PATH"));
}

TEST_F(Tools, RefusedCountersNameTheWayRound) {
  install("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1");
  EXPECT_THAT(run_ncu(tool_run(), MetricSet::full).failure, HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"));
}

TEST_F(Tools, FailuresQuoteTheLastLine) {
  install("ncu", "echo one; echo 'two went wrong'; exit 1");
  const std::string failure = run_ncu(tool_run(), MetricSet::full).failure;
  EXPECT_THAT(failure, HasSubstr("exit status 1"));
  EXPECT_THAT(failure, HasSubstr("two went wrong"));
}

TEST_F(Tools, RubbishIsNoReport) {
  install("ncu", "head -c 4096 /dev/urandom");
  EXPECT_THAT(run_ncu(tool_run(), MetricSet::full).failure, HasSubstr("wrote no report"));
  install("ncu", R"(if [ "$1" = --import ]; then head -c 4096 /dev/urandom; exit 0; fi
while [ $# -gt 0 ]; do [ "$1" = --export ] && echo report > "$2"; shift; done)");
  EXPECT_THAT(run_ncu(tool_run(), MetricSet::full).failure, HasSubstr("printed no metrics"));
}

TEST_F(Tools, AHungToolDiesWithWhatItStarted) {
  install("ncu", "sleep 1000 & echo $! > child.txt; wait");
  const double began_s = base::monotonic_s();
  EXPECT_THAT(run_ncu(tool_run(0.5), MetricSet::full).failure, HasSubstr("did not end in 0.5 s"));
  EXPECT_LT(base::monotonic_s() - began_s, 15);
  std::string child = base::read_file(scratch_.path() / "child.txt");
  child.pop_back();
  EXPECT_TRUE(ends_within(child, 5)) << "the tool's own child still runs";
}

TEST_F(Tools, AnInterruptEndsATool) {
  install("nsys", "exec sleep 1000");
  ToolRun run = tool_run(100);
  run.interrupted = [] { return true; };
  EXPECT_THAT(run_nsys(run).failure, HasSubstr("interrupted"));
}

TEST_F(Tools, NsysLeavesAReport) {
  install("nsys", R"(while [ $# -gt 0 ]; do [ "$1" = --output ] && echo report > "$2.nsys-rep"; shift; done)");
  const ToolOutcome outcome = run_nsys(tool_run());
  EXPECT_THAT(outcome.failure, IsEmpty());
  EXPECT_EQ(outcome.report, scratch_.path() / "tiled.nsys-rep");
}

}  // namespace
}  // namespace aisp::profile
