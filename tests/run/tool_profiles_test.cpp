// SPDX-License-Identifier: Apache-2.0
// ncu as a script that notes for which variant it was started.
#include "run/tool_profiles.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/files.hpp"
#include "base/text.hpp"

namespace aisp::run {
namespace {

namespace fs = std::filesystem;

class ToolProfiles : public testing::Test {
 protected:
  ToolProfiles() : old_path_{std::getenv("PATH")} {
    setenv("PATH", (scratch_.path().string() + ":/usr/bin:/bin").c_str(), 1);
    const fs::path ncu = scratch_.path() / "ncu";
    std::ofstream{ncu} << "#!/bin/sh\nfor word in \"$@\"; do last=$word; done\necho $last >> " << noted() << "\nexit 1\n";
    fs::permissions(ncu, fs::perms::owner_all);
    result_.device = "gpu";
    request_.counters = CounterLevel::deep;
    for (const char* name : {"slow", "doubled", "waiting"}) result_.variants.emplace_back().name = name;
  }
  ~ToolProfiles() override { setenv("PATH", old_path_.c_str(), 1); }

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

TEST_F(ToolProfiles, NothingIsStartedWhereNoCountersWereAskedFor) {
  request_.counters = CounterLevel::none;
  EXPECT_EQ(profiled(), "");
}

}  // namespace
}  // namespace aisp::run
