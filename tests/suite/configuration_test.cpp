// SPDX-License-Identifier: Apache-2.0
#include "suite/settings/configuration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace aisp::suite {
namespace {

using testing::HasSubstr;

constexpr Pair patient{.teaches = "",
                       .make = nullptr,
                       .baseline = {"a"},
                       .optimized = variants({{"b"}}),
                       .overrides = {.iterations = 50, .setup_seconds = 90}};
constexpr pair::Entry entry{"ch01", "patient", "", &patient};

void expect_rejected(const char* name, const std::vector<std::string>& values, const std::string& words,
                     const char* origin = "flag") {
  Configuration configuration;
  try {
    apply(configuration, name, values, origin);
    ADD_FAILURE() << name << " accepted " << testing::PrintToString(values);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.status(), base::Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(Configuration, LaterLayersWinOverThePairsOwn) {
  Configuration configuration;
  EXPECT_EQ(request_for(entry, configuration).iterations, 50);
  EXPECT_EQ(request_for(entry, configuration).limits.setup, 90);
  apply(configuration, "iterations", {"30"}, "aisp.toml");
  EXPECT_EQ(request_for(entry, configuration).iterations, 30);
  apply(configuration, "iterations", {"7"}, "flag");
  EXPECT_EQ(request_for(entry, configuration).iterations, 7);
}

TEST(Configuration, EffectiveValuesNameTheirOrigin) {
  Configuration configuration;
  apply(configuration, "warmup", {"9"}, "aisp.toml");
  apply(configuration, "seed", {"7"}, "flag");
  const pair::Entry* selected[] = {&entry};
  const nlohmann::json json = effective(configuration, selected);
  EXPECT_EQ(json["warmup"], (nlohmann::json{{"value", 9}, {"origin", "aisp.toml"}}));
  EXPECT_EQ(json["seed"], (nlohmann::json{{"value", 7}, {"origin", "flag"}}));
  EXPECT_EQ(json["iterations"], (nlohmann::json{{"value", 20}, {"origin", "default"}}));
  EXPECT_EQ(json["pairs"]["ch01:patient"]["iterations"], (nlohmann::json{{"value", 50}, {"origin", "pair"}}));
}

TEST(Configuration, TheMultiplierStretchesEveryLimit) {
  Configuration configuration;
  apply(configuration, "timeout-multiplier", {"2"}, "flag");
  const run::StageLimits limits = request_for(entry, configuration).limits;
  EXPECT_EQ(limits.setup, 180);
  EXPECT_EQ(limits.warmup, 30);
  EXPECT_EQ(limits.measurement, 30);
}

TEST(Configuration, ABudgetNeverRunsIntoTheMeasurementsLimit) {
  Configuration configuration;
  apply(configuration, "budget", {"1m"}, "flag");
  EXPECT_GT(request_for(entry, configuration).limits.measurement, 60);
}

TEST(Configuration, BadValuesNameTheFlagTheValueAndWhatIsRight) {
  expect_rejected("iterations", {"abc"}, "--iterations 'abc' must be a whole number");
  expect_rejected("iterations", {"0"}, "whole number from 1");
  expect_rejected("iterations", {"5", "6"}, "takes one value");
  expect_rejected("iterations", {"99999999999999999999"}, "whole number");
  expect_rejected("warmup", {"-1"}, "whole number from 0");
  expect_rejected("scale", {"2"}, "from 0.0001 to 1");
  expect_rejected("scale", {"nan"}, "from 0.0001 to 1");
  expect_rejected("seed", {"-1"}, "2^64");
  expect_rejected("mode", {"evnets"}, "did you mean events?");
  expect_rejected("suite-timeout", {"4x"}, "as in 90s, 5m");
  expect_rejected("suite-timeout", {"0"}, "longer than zero");
  expect_rejected("percentiles", {"101"}, "0 to 100");
  expect_rejected("percentiles", {","}, "0 to 100");
  std::string many = "0";
  for (int i = 1; i <= 100; ++i) many += "," + std::to_string(i);
  expect_rejected("percentiles", {many}, "are 101 numbers, 100 at most");
  for (const char* gpus : {"-1", "0-7", "zz", "0,zz", ","}) expect_rejected("gpus", {gpus}, "as in 0,2 or GPU-1b2c");
  expect_rejected("size", {"m"}, "NAME=N");
  expect_rejected("size", {"m=64", "m=128"}, "m twice");
  expect_rejected("size", {"m=1:100:+1", "n=1,2,3"}, "grid of 300 points, 256 at most");
  expect_rejected("profile", {"some"}, "none, minimal or full");
  expect_rejected("run-id", {"../x"}, "names one folder");
  expect_rejected("iteratons", {"5"}, "aisp.toml: unknown setting 'iteratons'; did you mean 'iterations'?", "aisp.toml");
  expect_rejected("iterations", {"x"}, "aisp.toml: iterations 'x'", "aisp.toml");
}

std::string refusal_of_file(const std::string& text) {
  try {
    parse_settings(text, "aisp.toml");
    Configuration configuration;
    apply_text(configuration, text, "aisp.toml");
  } catch (const base::Error& error) {
    return error.what();
  }
  return "it was taken";
}

TEST(ConfigurationFile, AKeyOfManyPartsIsRefusedAndNotFollowedDown) {
  std::string parts = "a";
  for (int i = 0; i < 100'000; ++i) parts += ".a";
  for (const std::string& line : {parts + " = 1", "[" + parts + "]", "x = {" + parts + " = 1}", "[[" + parts + "]]"})
    EXPECT_EQ(refusal_of_file("# " + std::string(300, '.') + "\nwarmup = 1\n" + line + "\n"),
              "aisp.toml:3: more than 256 dots in a line; no setting has a name of so many parts");
}

TEST(ConfigurationFile, NumbersAreThoseThatFlagsTake) {
  EXPECT_THAT(refusal_of_file("iterations = 1e3"), HasSubstr("aisp.toml:1: iterations '1000.0' must be a whole number"));
  EXPECT_THAT(refusal_of_file("seed = 18446744073709551615"), HasSubstr("put the number in quotes"));
  EXPECT_EQ(refusal_of_file("iterations = 1000\nscale = 1.0\nbudget = \"3s\"\nseed = \"18446744073709551615\""), "it was taken");
}

TEST(Configuration, EverySettingShowsWhatWasSet) {
  const std::map<std::string, std::pair<std::vector<std::string>, nlohmann::json>> examples{
      {"mode", {{"do_bench"}, "do_bench"}},
      {"iterations", {{"3"}, 3}},
      {"fixed-iterations", {{}, true}},
      {"warmup", {{"0"}, 0}},
      {"budget", {{"1.5s"}, 1.5}},
      {"timeout-multiplier", {{"0.5"}, 0.5}},
      {"suite-timeout", {{"2h"}, 7200.0}},
      {"reproducible", {{"true"}, true}},
      {"cold-start", {{}, true}},
      {"no-alternate", {{}, true}},
      {"profile", {{"minimal"}, "minimal"}},
      {"energy", {{}, true}},
      {"energy-window", {{"2s"}, 2.0}},
      {"ttft-target-ms", {{"20"}, 20.0}},
      {"tpot-target-ms", {{"5"}, 5.0}},
      {"seed", {{"1"}, 1}},
      {"scale", {{"0.5"}, 0.5}},
      {"size", {{"m=1:4:*2", "k=64,n=4096"}, "k=64,m=1,2,4,n=4096"}},
      {"sweep", {{}, true}},
      {"percentiles", {{"99.9,10"}, {99.9, 10.0}}},
      {"gpus", {{"0,1"}, {"0", "1"}}},
      {"jobs", {{"2"}, 2}},
      {"in-process", {{}, true}},
      {"artifacts-dir", {{"out"}, "out"}},
      {"shard", {{"2/8"}, "2/8"}},
      {"run-id", {{"nightly-1"}, "nightly-1"}}};
  for (const SettingRow& setting : settings()) {
    const auto example = examples.find(std::string{setting.name});
    ASSERT_NE(example, examples.end()) << setting.name << " has no example here";
    Configuration configuration;
    apply(configuration, setting.name, example->second.first, "flag");
    EXPECT_EQ(setting.show(configuration), example->second.second) << setting.name;
  }
}

TEST(Duration, KnowsUnits) {
  EXPECT_DOUBLE_EQ(parse_duration("90"), 90);
  EXPECT_DOUBLE_EQ(parse_duration("5m"), 300);
  EXPECT_DOUBLE_EQ(parse_duration("1.5h"), 5400);
  for (const char* bad : {"", "h", "-1", "1d", "inf", "1e9", "5 m"}) EXPECT_ANY_THROW(parse_duration(bad)) << bad;
}

}  // namespace
}  // namespace aisp::suite
