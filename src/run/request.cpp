// SPDX-License-Identifier: Apache-2.0
#include "run/request.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace aisp::run {
namespace {

constexpr TimingMode all_modes[] = {TimingMode::events, TimingMode::kernel, TimingMode::do_bench, TimingMode::timer};

constexpr std::array counter_words{"none", "deep", "full"};  // in the order of CounterLevel

CounterLevel level_from(const std::string& text) {
  const auto found = std::find(counter_words.begin(), counter_words.end(), text);
  if (found == counter_words.end()) throw base::Error{base::Exit::usage, "unknown counter level '" + text + "'"};
  return static_cast<CounterLevel>(found - counter_words.begin());
}

TimingMode mode_from(const std::string& text) {
  for (const TimingMode mode : all_modes)
    if (text == to_string(mode)) return mode;
  throw base::Error{base::Exit::usage, "unknown timing mode '" + text + "'"};
}

nlohmann::json limits_to_json(const StageLimits& limits) {
  return {
      {"setup", limits.setup}, {"verify", limits.verify},     {"warmup", limits.warmup},    {"measurement", limits.measurement},
      {"audit", limits.audit}, {"counters", limits.counters}, {"teardown", limits.teardown}};
}

// A key that is missing keeps its default, so that a newer parent and an older request still understand each other.
template <class T>
void read(const nlohmann::json& json, const char* key, T& value) {
  if (const auto found = json.find(key); found != json.end()) found->get_to(value);
}

void limits_from_json(const nlohmann::json& json, StageLimits& limits) {
  read(json, "setup", limits.setup);
  read(json, "verify", limits.verify);
  read(json, "warmup", limits.warmup);
  read(json, "measurement", limits.measurement);
  read(json, "audit", limits.audit);
  read(json, "counters", limits.counters);
  read(json, "teardown", limits.teardown);
}

}  // namespace

std::string_view to_string(TimingMode mode) {
  switch (mode) {
    case TimingMode::events: return "events";
    case TimingMode::kernel: return "kernel";
    case TimingMode::do_bench: return "do_bench";
    case TimingMode::timer: return "timer";
  }
  return "events";
}

void to_json(nlohmann::json& json, const Request& request) {
  json = nlohmann::json{{"target", request.target},
                        {"gpus", request.gpus},
                        {"mode", to_string(request.mode)},
                        {"iterations", request.iterations},
                        {"warmup", request.warmup},
                        {"fixed_iterations", request.fixed_iterations},
                        {"confidence_width", request.confidence_width},
                        {"budget_s", request.budget_s},
                        {"alternate", request.alternate},
                        {"cold_start", request.cold_start},
                        {"reproducible", request.reproducible},
                        {"verify_only", request.verify_only},
                        {"counters", counter_words[static_cast<std::size_t>(request.counters)]},
                        {"seed", request.seed},
                        {"scale", request.scale},
                        {"percentiles", request.percentiles},
                        {"limits", limits_to_json(request.limits)},
                        {"scratch_parent", request.scratch_parent}};
}

void from_json(const nlohmann::json& json, Request& request) {
  json.at("target").get_to(request.target);
  read(json, "gpus", request.gpus);
  if (const auto mode = json.find("mode"); mode != json.end()) request.mode = mode_from(mode->get<std::string>());
  read(json, "iterations", request.iterations);
  read(json, "warmup", request.warmup);
  read(json, "fixed_iterations", request.fixed_iterations);
  read(json, "confidence_width", request.confidence_width);
  read(json, "budget_s", request.budget_s);
  read(json, "alternate", request.alternate);
  read(json, "cold_start", request.cold_start);
  read(json, "reproducible", request.reproducible);
  read(json, "verify_only", request.verify_only);
  if (const auto level = json.find("counters"); level != json.end()) request.counters = level_from(level->get<std::string>());
  read(json, "seed", request.seed);
  read(json, "scale", request.scale);
  read(json, "percentiles", request.percentiles);
  if (const auto limits = json.find("limits"); limits != json.end()) limits_from_json(*limits, request.limits);
  read(json, "scratch_parent", request.scratch_parent);
}

}  // namespace aisp::run
