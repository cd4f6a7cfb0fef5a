// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "pair/code.hpp"
#include "suite/records/records.hpp"
#include "suite/selection.hpp"

namespace aisp::suite {
namespace {

using testing::HasSubstr;

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
  json["schema_version"] = evidence::schema_version;
  base::write_atomically(scratch.path() / configuration_file, json.dump());

  const Resumed resumed = read_resumed(scratch.path(), {"ch01:loop_order"});
  EXPECT_EQ(resumed.targets, (std::vector<std::string>{"ch07:transpose", "ch01:loop_order"})) << "named ones are added";
  EXPECT_EQ(resumed.configuration.iterations, 7);
  EXPECT_EQ(resumed.configuration.percentiles, (std::vector<double>{99.9, 10}));
  EXPECT_FALSE(resumed.configuration.alternate);
  EXPECT_EQ(resumed.configuration.mode, run::TimingMode::timer);
  EXPECT_EQ(resumed.configuration.run_id, "");
  EXPECT_EQ(resumed.configuration.origins.count("warmup"), 0u) << "a default must stay open for the pair's own value";
}

TEST(Resume, NobodyGuessesWhatARunWasToMeasure) {
  const base::ScratchDirectory scratch{"aisp-test-"};
  const auto refusal = [&](const std::vector<std::string>& targets) {
    try {
      read_resumed(scratch.path(), targets);
      return std::string{};
    } catch (const base::Error& error) {
      EXPECT_EQ(error.status(), base::Exit::usage);
      return std::string{error.what()};
    }
  };
  EXPECT_THAT(refusal({}), testing::AllOf(HasSubstr("No such file"), HasSubstr("--targets")));
  EXPECT_EQ(refusal({"ch07"}), "") << "who names the pairs knows what to measure";
  for (const char* text :
       {"", "[]", "null", "{ \"iterations\": ", "{}", R"({"schema_version": 1})", R"({"schema_version": 1, "targets": []})",
        R"({"schema_version": 9, "targets": ["ch07"]})", R"({"schema_version": 1, "targets": [7]})"}) {
    base::write_atomically(scratch.path() / configuration_file, text);
    EXPECT_THAT(refusal({}), HasSubstr("effective_configuration.json is damaged")) << text;
    EXPECT_THAT(refusal({"ch07"}), HasSubstr("effective_configuration.json is damaged")) << text;
  }
}

evidence::Manifest made_here() {
  return {.run_id = "nightly",
          .aisp_version = "0.1.0",
          .commit = "4361b56",
          .build_type = "Release",
          .gpus = {{.name = "NVIDIA H200"}, {.ordinal = 1, .name = "NVIDIA H200"}},
          .driver_version = "580.95",
          .cpu = "AMD EPYC",
          .cpus_usable = 64};
}

TEST(Elsewhere, IsAnotherMachineOrProgram) {
  const evidence::Manifest earlier = made_here();
  evidence::Manifest now = earlier;
  now.hostname = "another container";
  now.gpus.pop_back();
  EXPECT_EQ(elsewhere(earlier, now), "") << "one of the GPUs of the same kind";
  now.cpu = "Intel Xeon";
  now.commit = "77afd40";
  EXPECT_EQ(elsewhere(earlier, now), "CPU AMD EPYC, aisp 0.1.0 4361b56");
  now = earlier;
  now.cpus_usable = 8;
  now.driver_version = "570.10";
  now.gpus.front().name = "NVIDIA H100";
  EXPECT_EQ(elsewhere(earlier, now), "usable CPUs 64, GPU NVIDIA H200, driver 580.95");
}

TEST(Elsewhere, ResultsOfAGpuNeedOneAndThoseOfTheHostKnowOfNone) {
  const evidence::Manifest with = made_here();
  evidence::Manifest without = with;
  without.gpus.clear();
  without.driver_version.clear();
  EXPECT_EQ(elsewhere(without, with), "");
  EXPECT_EQ(elsewhere(with, without), "GPU NVIDIA H200, driver 580.95");
}

class TakenOver : public testing::Test {
 protected:
  TakenOver() {
    earlier_.timing_mode = evidence::TimingMode::events;
    earlier_.seed = wish_.seed;
    placement_.entry = select(pair::registry(), {"ch90:good"}).front();
    earlier_.source_digest = std::string{pair::digest_on(pair::code_of(*placement_.entry), 0)};
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
  earlier_.timing_mode = evidence::TimingMode::timer;
  wish_.reproducible = true;
  EXPECT_EQ(other(), "not reproducible");
  earlier_.reproducible = true;
  earlier_.alternated = false;
  EXPECT_EQ(other(), "not alternating");
  earlier_.source_digest = "00";
  EXPECT_EQ(other(), "not alternating, other code");
}

TEST_F(TakenOver, WhatPassedAndNothingElse) {
  earlier_.target = "ch90:good";
  const auto part = [&] {
    evidence::ResultsLog log;
    log.results = {earlier_};
    Configuration configuration;
    configuration.seed = wish_.seed;
    return take_over(log, {placement_}, configuration, machine_);
  };
  using testing::ElementsAre;
  EXPECT_EQ(part().kept.size(), 1u);
  EXPECT_THAT(part().notes, ElementsAre("resumed: 1 of 1 pairs were done already"));
  earlier_.seed = 1;
  EXPECT_THAT(part().notes, ElementsAre("resumed: measured again, because done with other settings: ch90:good (seed 1)"));
  earlier_.status = evidence::Status::failed;  // for want of disk, say, of which there is more now
  EXPECT_THAT(part().notes, ElementsAre("resumed: measured again, because they did not pass: ch90:good (failed)"));
  EXPECT_TRUE(part().kept.empty());
  earlier_.status = evidence::Status::skipped;
  EXPECT_TRUE(part().kept.empty() && part().notes.empty()) << "asked again without a word";
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
