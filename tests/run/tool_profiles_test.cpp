// SPDX-License-Identifier: Apache-2.0
// ncu as a script that notes for which variant it was started.
#include "run/parent/tool_profiles.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/system/files.hpp"
#include "base/text.hpp"
#include "profile/tools.hpp"

namespace aisp::run {
namespace {

namespace fs = std::filesystem;

class ToolProfiles : public testing::Test {
 protected:
  ToolProfiles() : old_path_{std::getenv("PATH")} {
    setenv("PATH", (scratch_.path().string() + ":/usr/bin:/bin").c_str(), 1);
    install("ncu", "echo $last >> " + noted() + "\nexit 1\n");
    result_.device = evidence::Device::gpu;
    request_.counters = CounterLevel::deep;
    for (const char* name : {"slow", "doubled", "waiting"}) result_.variants.emplace_back().name = name;
  }
  ~ToolProfiles() override { setenv("PATH", old_path_.c_str(), 1); }

  // `script` has the tool's last argument, the variant, in $last.
  void install(const std::string& tool, const std::string& script) const {
    const fs::path path = scratch_.path() / tool;
    std::ofstream{path} << "#!/bin/sh\nfor word in \"$@\"; do last=$word; done\n" << script;
    fs::permissions(path, fs::perms::owner_all);
  }
  std::string noted() const { return (scratch_.path() / "noted.txt").string(); }
  std::string profiled() {
    add_tool_profiles(result_, request_,
                      {.folder = scratch_.path() / "run", .pair_folder = "ch95_gpu_only", .executable = "aisp"});
    return base::try_read_file(noted()).value_or("");
  }

  base::ScratchDirectory scratch_{"aisp-tool-profiles-", fs::temp_directory_path()};
  std::string old_path_;
  evidence::PairResult result_;
  Request request_;
};

TEST_F(ToolProfiles, NcuIsTriedWhereNoVariantHasCounters) { EXPECT_EQ(profiled(), "slow\ndoubled\nwaiting\n"); }

// Its kernel waits for the host, say: ncu would hold it back for minutes.
TEST_F(ToolProfiles, WhatCuptiCouldNotCountIsNotGivenToNcu) {
  result_.variants[0].counters.emplace();
  EXPECT_EQ(profiled(), "");
}

TEST_F(ToolProfiles, WhatTheDriverRefusedToCuptiIsNotAskedForAgain) {
  result_.lost = {{evidence::LostKind::counters_refused, std::string{"no counters: "} + profile::counters_refused}};
  EXPECT_EQ(profiled(), "");
  EXPECT_THAT(result_.lost, testing::SizeIs(1)) << "said once";
}

TEST_F(ToolProfiles, ARefusalIsOneLineAndOneAttempt) {
  install("ncu", "echo $last >> " + noted() + "\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n");
  EXPECT_EQ(profiled(), "slow\n");
  ASSERT_EQ(result_.lost.size(), 1u);
  EXPECT_EQ(result_.lost[0].text, std::string{"no ncu profile: "} + profile::counters_refused);
}

TEST_F(ToolProfiles, ReportsOfNsysAreNamedInTheResult) {
  install("nsys", "while [ $# -gt 0 ]; do [ \"$1\" = --output ] && echo report > \"$2.nsys-rep\"; shift; done\n");
  result_.variants[0].counters.emplace();
  request_.counters = CounterLevel::full;
  profiled();
  EXPECT_EQ(result_.variants[1].nsys_report, "ch95_gpu_only/profiles/doubled.nsys-rep");
  EXPECT_TRUE(fs::exists(scratch_.path() / "run" / *result_.variants[1].nsys_report));
  EXPECT_THAT(result_.lost, testing::IsEmpty());
}

TEST_F(ToolProfiles, WithoutNsysThereIsOneLineAndEverythingElse) {
  result_.variants[0].counters.emplace();
  request_.counters = CounterLevel::full;
  profiled();
  ASSERT_EQ(result_.lost.size(), 1u);
  EXPECT_EQ(result_.lost[0].kind, evidence::LostKind::tool_profile);
  EXPECT_EQ(result_.lost[0].text, "no nsys profile: nsys is not on PATH; it comes with Nsight Systems");
  EXPECT_EQ(result_.status, evidence::Status::passed);
  EXPECT_TRUE(result_.variants[0].counters);
}

TEST_F(ToolProfiles, NothingIsStartedWhereNoCountersWereAskedFor) {
  request_.counters = CounterLevel::none;
  EXPECT_EQ(profiled(), "");
}

}  // namespace
}  // namespace aisp::run
