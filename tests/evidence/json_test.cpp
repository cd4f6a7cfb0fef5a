// SPDX-License-Identifier: Apache-2.0
#include "evidence/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "../report/sample_suite.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/manifest.hpp"
#include "evidence/results_log.hpp"

namespace aisp::evidence {
namespace {

using nlohmann::json;
using testing::HasSubstr;
namespace sample = report::sample;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    return error.what();
  }
  return "no error";
}

TEST(Json, ThereAndBackIsTheSame) {
  const json once = sample::suite();
  EXPECT_EQ(json(once.get<SuiteResult>()), once);
  const json manifest = sample::manifest();
  EXPECT_EQ(json(manifest.get<Manifest>()), manifest);
}

TEST(Json, KeepsTheFieldNamesOfTheSourceMaterial) {
  const json pair = sample::passed_pair();
  for (const char* name :
       {"timeout_stage", "timeout_duration_seconds", "timeout_limit_seconds", "watchdog", "errors", "schema_version"})
    EXPECT_TRUE(pair.contains(name)) << name;
  for (const char* name : {"mean_ms", "median_ms", "std_ms", "p99_ms", "iterations", "raw_times_ms"})
    EXPECT_TRUE(pair["variants"][0]["timing"].contains(name)) << name;
  EXPECT_EQ(pair["watchdog"]["setup"]["limit_s"], 30);
}

TEST(Json, NothingThatIsNotANumber) {
  PairResult pair = sample::passed_pair();
  pair.variants[0].accuracy->relative_l2 = INFINITY;
  pair.wall_s = NAN;
  const std::string text = json(pair).dump();
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf\""), std::string::npos);
  EXPECT_TRUE(std::isnan(json::parse(text).get<PairResult>().wall_s));
}

TEST(Json, BytesThatAreNoTextAreReplaced) {
  PairResult pair = sample::passed_pair();
  pair.reason = "alas \xff!";
  EXPECT_EQ(json::parse(json_text(pair)).get<PairResult>().reason, "alas \uFFFD!");
}

TEST(Json, UnknownFieldsAreIgnored) {
  json pair = sample::passed_pair();
  pair["of_a_later_version"] = {1, 2, 3};
  EXPECT_EQ(pair.get<PairResult>().target, "ch07:transpose");
}

TEST(Json, AWrongTypeIsNamedWithItsPlace) {
  json pair = sample::passed_pair();
  pair["variants"][1]["speedup"]["low"] = "fast";
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }),
              HasSubstr("result.variants[1].speedup.low: expected a number, found string"));
  pair = sample::passed_pair();
  pair["status"] = "splendid";
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }), HasSubstr("passed, failed, timeout, crashed, skipped"));
  pair = sample::passed_pair();
  pair["variants"] = 7;
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }), HasSubstr("expected an array"));
  pair = sample::passed_pair();
  pair["gpu_states"][0]["sm_clock_mhz"] = 1e300;
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }), HasSubstr("sm_clock_mhz"));
  pair["gpu_states"][0]["sm_clock_mhz"] = 99999999999;
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }), HasSubstr("out of range"));
}

TEST(Json, AnUnknownWordIsRefusedWithItsPlaceAndTheKnownOnes) {
  const auto refusal = [](const json::json_pointer& place, const char* word) {
    json pair = sample::passed_pair();
    pair[place] = word;
    return error_of([&] { pair.get<PairResult>(); });
  };
  const auto at = [](const char* place) { return json::json_pointer{place}; };
  EXPECT_THAT(refusal(at("/device"), "tpu"), HasSubstr("result.device: \"tpu\" is none of gpu, host"));
  EXPECT_THAT(refusal(at("/bound"), "luck"), HasSubstr("result.bound: \"luck\" is none of memory, compute"));
  EXPECT_THAT(refusal(at("/timing_mode"), "guess"), HasSubstr("result.timing_mode: \"guess\" is none of events, kernel"));
  EXPECT_THAT(refusal(at("/start"), "late"), HasSubstr("result.start: \"late\" is none of released, immediate, none"));
  EXPECT_THAT(refusal(at("/cache"), "warm"), HasSubstr("result.cache: \"warm\" is none of cold, hot, none"));
  EXPECT_THAT(refusal(at("/stopped_because"), "tired"),
              HasSubstr("result.stopped_because: \"tired\" is none of interval narrow, time budget"));
  EXPECT_THAT(refusal(at("/timeout_stage"), "lunch"), HasSubstr("result.timeout_stage: \"lunch\" is none of selection, start"));
  EXPECT_THAT(refusal(at("/variants/0/bytes_of"), "disk"),
              HasSubstr("result.variants[0].bytes_of: \"disk\" is none of device memory, host memory"));
  json pair = sample::passed_pair();
  pair["watchdog"]["lunch"] = pair["watchdog"]["setup"];
  EXPECT_THAT(error_of([&] { pair.get<PairResult>(); }), HasSubstr("result.watchdog: \"lunch\" is none of selection, start"));
}

TEST(Json, EveryWordComesBack) {
  PairResult pair = sample::passed_pair();
  pair.device = Device::host;
  pair.bound = Bound::transfer;
  pair.timing_mode = TimingMode::do_bench;
  pair.start = Start::none;
  pair.cache = Cache::none;
  pair.stopped_because = StopReason::most_rounds;
  pair.timeout_stage = Stage::suite;
  pair.variants[0].cost.bytes_of = ByteKind::device_to_host;
  const json written = pair;
  EXPECT_EQ(written["stopped_because"], "most rounds");
  EXPECT_EQ(written["variants"][0]["bytes_of"], "device to host");
  EXPECT_EQ(json(written.get<PairResult>()), written);
}

TEST(Json, HostileTextIsRefused) {
  EXPECT_THAT(error_of([] { parse_json("{\"a\": ", "x.json"); }), HasSubstr("x.json: not valid JSON"));
  EXPECT_THAT(error_of([] { parse_json(std::string(100000, '['), "x.json"); }), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of([] { parse_json(std::string("\x00\xff\xfe", 3), "x.json"); }), HasSubstr("x.json"));
}

class Log : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    const auto path = folder_.path() / "results.jsonl";
    base::write_atomically(path, text);
    return path;
  }
  std::string header_ = header_line({.run_id = "run1", .started_utc = "2026-01-02T03:04:05Z"}) + "\n";
  std::string line_ = to_line(sample::passed_pair()) + "\n";
  base::ScratchDirectory folder_;
};

TEST_F(Log, TheLastResultOfATargetCounts) {
  PairResult again = sample::passed_pair();
  again.reason = "again";
  const ResultsLog log = read_results_log(write(header_ + line_ + to_line(again) + "\n"));
  ASSERT_EQ(log.results.size(), 1u);
  EXPECT_EQ(log.results[0].reason, "again");
  EXPECT_EQ(log.run_id, "run1");
  EXPECT_TRUE(log.warnings.empty());
}

TEST_F(Log, ACutLastLineIsAWarning) {
  const ResultsLog log = read_results_log(write(header_ + line_ + line_.substr(0, 300)));
  EXPECT_EQ(log.results.size(), 1u);
  ASSERT_EQ(log.warnings.size(), 1u);
  EXPECT_THAT(log.warnings[0], HasSubstr("results.jsonl:3"));
}

TEST_F(Log, RubbishInTheMiddleIsAnErrorWithItsLine) {
  EXPECT_THAT(error_of([&] { read_results_log(write(header_ + "rubbish\n" + line_)); }), HasSubstr("results.jsonl:2"));
  EXPECT_THAT(error_of([&] { read_results_log(write(header_ + "[1]\n" + line_)); }), HasSubstr("expected an object"));
  EXPECT_THAT(error_of([&] { read_results_log(write("")); }), HasSubstr("empty"));
}

TEST_F(Log, WhatIsNotOursOrOfAnotherVersionIsRefused) {
  const auto refusal = [&](const std::string& text) { return error_of([&] { read_results_log(write(text)); }); };
  EXPECT_THAT(refusal(line_ + line_), HasSubstr("results.jsonl:1: this is not the first line of a results log"));
  EXPECT_THAT(refusal(R"({"kind":"notes","schema_version":1})"
                      "\n"),
              HasSubstr("not the first line"));
  EXPECT_THAT(refusal(R"({"kind":"aisp results log","schema_version":99})"
                      "\n"),
              HasSubstr("schema version 99"));
  nlohmann::json later = sample::passed_pair();
  later["schema_version"] = 9;
  EXPECT_THAT(refusal(header_ + later.dump() + "\n"), HasSubstr("results.jsonl:2: schema version 9"));
}

TEST_F(Log, TellsWhichCommandWroteIt) {
  EXPECT_EQ(read_results_log(write(header_)).command, LogCommand::run);
  EXPECT_EQ(try_read_log_header(write(header_line({.run_id = "v", .command = LogCommand::verify}) + "\n" + line_))->command,
            LogCommand::verify);
  EXPECT_EQ(try_read_log_header(write(R"({"kind":"aisp results log","run_id":"old","schema_version":1,"started_utc":""})"
                                      "\n"))
                ->command,
            LogCommand::run);
  EXPECT_THAT(error_of([&] {
                read_results_log(write(R"({"command":"guess","kind":"aisp results log","schema_version":1})"
                                       "\n"));
              }),
              HasSubstr("results.jsonl:1.command: \"guess\" is none of run, verify"));
  for (const std::string& text :
       {std::string{}, header_.substr(0, header_.size() - 1), line_, std::string("[]\n"), std::string(99'999, '[')})
    EXPECT_EQ(try_read_log_header(write(text)), std::nullopt) << text.substr(0, 99);
  EXPECT_EQ(try_read_log_header(folder_.path() / "missing"), std::nullopt);
}

TEST_F(Log, AHeaderThatWasCutShortIsKnownByItsBeginning) {
  for (std::size_t length = 0; length + 1 < header_.size(); ++length)
    EXPECT_TRUE(is_unfinished_header(header_.substr(0, length), "run1")) << length;
  EXPECT_FALSE(is_unfinished_header(header_, "run1"));
  EXPECT_FALSE(is_unfinished_header(header_.substr(0, 80), "run2"));
  EXPECT_FALSE(is_unfinished_header(line_.substr(0, 40), "run1"));
}

TEST(Manifests, OfAnotherVersionAreRefused) {
  nlohmann::json later = sample::manifest();
  later["schema_version"] = 9;
  EXPECT_THAT(error_of([&] { parse_manifest(later.dump(), "manifest.json"); }), HasSubstr("manifest.json: schema version 9"));
}

TEST(Manifests, DifferencesNameWhatMatters) {
  Manifest before = sample::manifest(), after = sample::manifest();
  EXPECT_TRUE(differences(before, after).empty());
  after.run_id = "other";
  after.started_utc = "later";
  EXPECT_TRUE(differences(before, after).empty());
  after.driver_version = "590.1";
  after.configuration[1].value = "8";
  after.gpus[0].sm_clock_max_mhz = 1755;
  std::vector<std::string> fields;
  for (const ManifestDifference& difference : differences(before, after)) fields.push_back(difference.field);
  EXPECT_THAT(fields, testing::ElementsAre("configuration.seed", "driver_version", "gpus[0].sm_clock_max_mhz"));
}

TEST(Manifests, OnlyHarmlessVariablesAreRecorded) {
  const char* environment[] = {"CUDA_VISIBLE_DEVICES=0", "AWS_SECRET=x", "PATH=/bin", "LD_LIBRARY_PATH=/a", "broken", nullptr};
  const auto recorded = recorded_environment(environment);
  EXPECT_EQ(recorded.size(), 2u);
  EXPECT_EQ(recorded.at("LD_LIBRARY_PATH"), "/a");
}

TEST(CheckedSpeedups, AreRatiosOfTimes) {
  PairResult pair{.target = "ch01:a", .chapter = "ch01", .name = "a"};
  pair.variants = {{.name = "fast"}};
  const auto reading = [&](const Speedup& speedup) {
    pair.variants[0].speedup = speedup;
    try {
      parse_results_log(header_line({.run_id = "r", .started_utc = "t"}) + "\n" + to_line(pair) + "\n", "results.jsonl");
      return std::string{"read"};
    } catch (const base::Error& error) {
      return std::string{error.what()};
    }
  };
  for (const Speedup& good : {Speedup{7.7, 7.6, 7.8}, Speedup{0, 0, 0}, Speedup{7.7, 7.7, 7.7}, Speedup{NAN, NAN, NAN}})
    EXPECT_EQ(reading(good), "read");
  for (const Speedup& bad :
       {Speedup{1e308, 7.6, 7.8}, Speedup{1e308, 1e307, 1.1e308}, Speedup{-1, -2, 0}, Speedup{7.7, 7.6, 1e13}})
    EXPECT_THAT(reading(bad), HasSubstr("results.jsonl:2: fast has a speedup of"));
}

TEST(Manifests, OfSecretsOnlyThatTheyAreSetIsRecorded) {
  const char* environment[] = {"NVIDIA_API_KEY=x",
                               "NVIDIA_NGC_CLI_API_KEY=x",
                               "NVIDIA_SOMETHING=x",
                               "NCCL_NET_AUTH=x",
                               "AISP_CI_TOKEN=x",
                               "CUDA_DB_PASSWORD=x",
                               "CUDNN_LICENSE=x",
                               "NVIDIA_VISIBLE_DEVICES=all",
                               "NCCL_DEBUG=INFO",
                               "NVIDIA_TF32_OVERRIDE=0",
                               "OMP_NUM_THREADS=8",
                               "CUBLAS_WORKSPACE_CONFIG=:16:8",
                               "AISP_PEAK=off",
                               "CUBLAS_PWD=x",
                               "AISP_DB_PASS=x",
                               "AISP_CREDS=x",
                               "AISP_DB_URL=postgres://u:SECRET@h/",
                               "AISP_NET=tcp://a,https://TOKEN@h:1/x",
                               "NCCL_SOCKET=tcp://h/a@b",
                               nullptr};
  std::vector<std::string> told;
  for (const auto& [name, value] : recorded_environment(environment)) {
    EXPECT_NE(value, "x") << name;
    EXPECT_THAT(value, testing::Not(testing::ContainsRegex("SECRET|TOKEN"))) << name;
    if (value != "(set)") told.push_back(name);
  }
  EXPECT_THAT(told, testing::ElementsAre("AISP_PEAK", "CUBLAS_WORKSPACE_CONFIG", "NCCL_DEBUG", "NCCL_SOCKET",
                                         "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS"));
}

TEST(Manifests, NameTargetsAndNothingElse) {
  for (const char* target : {"ch01:a\n::error::b", "::error::b", "ch01", "ch01:../x", "ch01:a:b", ""}) {
    Manifest manifest;
    manifest.targets = {target};
    EXPECT_THROW(parse_manifest(json_text(nlohmann::json(manifest)), "manifest.json"), base::Error) << target;
  }
}

TEST(Lost, HasAKindForPrograms) {
  PairResult pair;
  pair.lost = {{LostKind::counters_refused, "no counters: the driver refuses"}};
  const nlohmann::json written = pair;
  EXPECT_EQ(written["lost"][0], (nlohmann::json{{"kind", "counters_refused"}, {"text", "no counters: the driver refuses"}}));
  EXPECT_EQ(written.get<PairResult>().lost[0].kind, LostKind::counters_refused);
  // As it was written before November 2026.
  nlohmann::json older = written;
  older["lost"] = {"no clock lock"};
  EXPECT_EQ(older.get<PairResult>().lost[0].text, "no clock lock");
  older["lost"] = {5};
  EXPECT_THROW(older.get<PairResult>(), base::Error);
}

}  // namespace
}  // namespace aisp::evidence
