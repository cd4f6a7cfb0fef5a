// SPDX-License-Identifier: Apache-2.0
#include "run/wire/request.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace aisp::run {
namespace {

TEST(Request, SurvivesTheTripToTheChild) {
  Request request;
  request.target = "ch07:transpose";
  request.gpus = {"GPU-1", "GPU-2"};
  request.mode = TimingMode::do_bench;
  request.iterations = 7;
  request.warmup = 1;
  request.fixed_iterations = true;
  request.confidence_width = 0.02;
  request.budget_s = 9;
  request.alternate = false;
  request.cold_start = true;
  request.reproducible = true;
  request.energy = true;
  request.energy_window_s = 0.5;
  request.ttft_target_ms = 200;
  request.tpot_target_ms = 20;
  request.verify_only = true;
  request.seed = 18446744073709551615ull;
  request.scale = 0.25;
  request.sizes = {{"m", 4096}};
  request.sweep_case = "square_4096";
  request.percentiles = {99.9};
  request.limits = {
      .setup = 1, .verify = 2, .warmup = 3, .measurement = 4, .audit = 5, .energy = 7, .profiling = 8, .teardown = 6};
  request.profile = ProfileLevel::full;
  request.run_folder = "/elsewhere";
  request.scratch_parent = "/somewhere";
  request.own_folder = "/own";
  request.baseline_runs = 3;
  request.takes_turns = true;
  const std::string text = nlohmann::json(request).dump();
  const Request copy = nlohmann::json::parse(text).get<Request>();
  EXPECT_EQ(nlohmann::json(copy).dump(), text);
  EXPECT_EQ(copy.seed, 18446744073709551615ull);
  EXPECT_EQ(copy.mode, TimingMode::do_bench);
  EXPECT_EQ(copy.limits.teardown, 6);
  EXPECT_EQ(copy.limits.profiling, 8);
  EXPECT_EQ(copy.profile, ProfileLevel::full);
  EXPECT_EQ(copy.run_folder, "/elsewhere");
  EXPECT_EQ(copy.limits.energy, 7);
  EXPECT_EQ(copy.sizes, request.sizes);
  EXPECT_EQ(copy.sweep_case, "square_4096");
  EXPECT_TRUE(copy.energy);
  EXPECT_EQ(copy.tpot_target_ms, 20);
  EXPECT_FALSE(copy.alternate);
  EXPECT_EQ(copy.own_folder, "/own");
  EXPECT_EQ(copy.baseline_runs, 3);
  EXPECT_TRUE(copy.takes_turns);
}

TEST(Request, MissingKeysKeepTheirDefaults) {
  const Request request = nlohmann::json::parse(R"({"target":"ch01:a"})").get<Request>();
  EXPECT_EQ(request.iterations, 20);
  EXPECT_EQ(request.limits.setup, 30);
}

TEST(Request, TargetIsRequiredAndModesAreChecked) {
  EXPECT_ANY_THROW(nlohmann::json::parse("{}").get<Request>());
  EXPECT_ANY_THROW(nlohmann::json::parse(R"({"target":"a","mode":"sundial"})").get<Request>());
  EXPECT_ANY_THROW(nlohmann::json::parse(R"({"target":"a","profile":"some"})").get<Request>());
}

}  // namespace
}  // namespace aisp::run
