// SPDX-License-Identifier: Apache-2.0
#include "suite/resume.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "suite/records.hpp"
#include "suite/select.hpp"

namespace aisp::suite {
namespace {

TEST(Resume, TakesOverWhatWasSetAndNothingElse) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  Configuration before;
  apply(before, "iterations", {"7"}, "flag");
  apply(before, "percentiles", {"99.9,10"}, "aisp.toml");
  apply(before, "no-alternate", {}, "flag");
  apply(before, "mode", {"timer"}, "flag");
  apply(before, "run-id", {"nightly"}, "flag");
  nlohmann::json json = effective(before, {});
  json["targets"] = {"ch07:transpose"};
  base::write_atomically(scratch.path() / configuration_file, json.dump());

  const Resumed resumed = read_resumed(scratch.path());
  EXPECT_EQ(resumed.targets, std::vector<std::string>{"ch07:transpose"});
  EXPECT_EQ(resumed.configuration.iterations, 7);
  EXPECT_EQ(resumed.configuration.percentiles, (std::vector<double>{99.9, 10}));
  EXPECT_FALSE(resumed.configuration.alternate);
  EXPECT_EQ(resumed.configuration.mode, run::TimingMode::timer);
  EXPECT_EQ(resumed.configuration.run_id, "");
  EXPECT_EQ(resumed.configuration.origins.count("warmup"), 0u) << "a default must stay open for the pair's own value";
}

TEST(Resume, DamageIsAnErrorAndAbsenceIsNot) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  EXPECT_TRUE(read_resumed(scratch.path()).targets.empty());
  base::write_atomically(scratch.path() / configuration_file, "{ \"iterations\": ");
  EXPECT_THROW(read_resumed(scratch.path()), base::Error);
}

class TakenOver : public testing::Test {
 protected:
  TakenOver() {
    earlier_.timing_mode = "events";
    earlier_.seed = wish_.seed;
    placement_.entry = select(pair::registry(), {"ch90:good"}).front();
    placement_.choices = {{}};
  }
  std::string other() const { return other_settings(earlier_, placement_, wish_, machine_); }

  Placement placement_;
  run::Request wish_;
  evidence::PairResult earlier_;
  machine::Machine machine_;
};

TEST_F(TakenOver, WhatWasMeasuredAsAskedForNow) {
  EXPECT_EQ(other(), "");
  wish_.iterations = 99;
  wish_.energy = true;
  wish_.profile = run::ProfileLevel::full;
  EXPECT_EQ(other(), "") << "samples and additions make no other measurement of it";
}

TEST_F(TakenOver, NotWhatWasMeasuredOtherwise) {
  wish_.scale = 0.5;
  EXPECT_EQ(other(), "scale 1");
  earlier_.scale = 0.5;
  EXPECT_EQ(other(), "");
  wish_.seed = 7;
  EXPECT_EQ(other(), "seed 42");
  wish_.mode = run::TimingMode::timer;
  EXPECT_EQ(other(), "seed 42, mode events");
  earlier_.seed = 7;
  earlier_.timing_mode = "timer";
  wish_.reproducible = true;
  EXPECT_EQ(other(), "not reproducible");
  earlier_.reproducible = true;
  earlier_.alternated = false;
  EXPECT_EQ(other(), "not alternating");
}

TEST_F(TakenOver, AGpuOfLittleMemoryScalesByItself) {
  machine_.gpus = {{.ordinal = 0, .memory_bytes = std::uint64_t{8} << 30}};
  placement_.choices = {{0}};
  earlier_.scale = 0.25;
  EXPECT_EQ(other(), "scale 0.25");
  wish_.scale = 0.5;
  EXPECT_EQ(other(), "");
}

}  // namespace
}  // namespace aisp::suite
