// SPDX-License-Identifier: Apache-2.0
#include "run/wire/request.hpp"

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

ProfileLevel profile_from(const std::string& text) {
  if (const auto level = profile_level(text)) return *level;
  throw base::Error{base::Exit::usage, "unknown profile level '" + text + "'"};
}

nlohmann::json limits_to_json(const StageLimits& limits) {
  return {
      {"setup", limits.setup},      {"verify", limits.verify},     {"warmup", limits.warmup}, {"measurement", limits.measurement},
      {"audit", limits.audit},      {"counters", limits.counters}, {"energy", limits.energy}, {"profiling", limits.profiling},
      {"teardown", limits.teardown}};
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
  read(json, "profiling", limits.profiling);
  read(json, "energy", limits.energy);
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

std::string_view to_string(ProfileLevel level) {
  switch (level) {
    case ProfileLevel::none: return "none";
    case ProfileLevel::minimal: return "minimal";
    case ProfileLevel::full: return "full";
  }
  return "none";
}

std::optional<ProfileLevel> profile_level(std::string_view text) {
  for (const ProfileLevel level : {ProfileLevel::none, ProfileLevel::minimal, ProfileLevel::full})
    if (text == to_string(level)) return level;
  return std::nullopt;
}

void to_json(nlohmann::json& json, const Request& request) {
  json = nlohmann::json{{"target", request.target},
                        {"gpus", request.gpus},
                        {"sm", request.sm},
                        {"mode", to_string(request.mode)},
                        {"iterations", request.iterations},
                        {"warmup", request.warmup},
                        {"fixed_iterations", request.fixed_iterations},
                        {"confidence_width", request.confidence_width},
                        {"budget_s", request.budget_s},
                        {"alternate", request.alternate},
                        {"cold_start", request.cold_start},
                        {"reproducible", request.reproducible},
                        {"energy", request.energy},
                        {"energy_window_s", request.energy_window_s},
                        {"ttft_target_ms", request.ttft_target_ms},
                        {"tpot_target_ms", request.tpot_target_ms},
                        {"verify_only", request.verify_only},
                        {"profile", to_string(request.profile)},
                        {"counters", counter_words[static_cast<std::size_t>(request.counters)]},
                        {"seed", request.seed},
                        {"scale", request.scale},
                        {"sizes", request.sizes},
                        {"case", request.sweep_case},
                        {"percentiles", request.percentiles},
                        {"limits", limits_to_json(request.limits)},
                        {"timeout_multiplier", request.timeout_multiplier},
                        {"running_variant_page", request.running_variant_page},
                        {"scratch_parent", request.scratch_parent},
                        {"run_folder", request.run_folder}};
}

void from_json(const nlohmann::json& json, Request& request) {
  json.at("target").get_to(request.target);
  read(json, "gpus", request.gpus);
  read(json, "sm", request.sm);
  if (const auto mode = json.find("mode"); mode != json.end()) request.mode = mode_from(mode->get<std::string>());
  read(json, "iterations", request.iterations);
  read(json, "warmup", request.warmup);
  read(json, "fixed_iterations", request.fixed_iterations);
  read(json, "confidence_width", request.confidence_width);
  read(json, "budget_s", request.budget_s);
  read(json, "alternate", request.alternate);
  read(json, "cold_start", request.cold_start);
  read(json, "reproducible", request.reproducible);
  read(json, "energy", request.energy);
  read(json, "energy_window_s", request.energy_window_s);
  read(json, "ttft_target_ms", request.ttft_target_ms);
  read(json, "tpot_target_ms", request.tpot_target_ms);
  read(json, "verify_only", request.verify_only);
  if (const auto level = json.find("profile"); level != json.end()) request.profile = profile_from(level->get<std::string>());
  if (const auto level = json.find("counters"); level != json.end()) request.counters = level_from(level->get<std::string>());
  read(json, "seed", request.seed);
  read(json, "scale", request.scale);
  read(json, "sizes", request.sizes);
  read(json, "case", request.sweep_case);
  read(json, "percentiles", request.percentiles);
  if (const auto limits = json.find("limits"); limits != json.end()) limits_from_json(*limits, request.limits);
  read(json, "timeout_multiplier", request.timeout_multiplier);
  read(json, "running_variant_page", request.running_variant_page);
  read(json, "scratch_parent", request.scratch_parent);
  read(json, "run_folder", request.run_folder);
}

}  // namespace aisp::run
