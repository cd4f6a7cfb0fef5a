// SPDX-License-Identifier: Apache-2.0
#include "run/wire/request.hpp"

#include "base/json_fields.hpp"

namespace aisp::run {

static constexpr base::Words<3> words_of(ProfileLevel) { return {{"none", "minimal", "full"}}; }
static constexpr base::Words<3> words_of(CounterLevel) { return {{"none", "deep", "full"}}; }

template <class Visitor>
static void describe(StageLimits& limits, Visitor& visit) {
  visit("setup", limits.setup);
  visit("verify", limits.verify);
  visit("warmup", limits.warmup);
  visit("measurement", limits.measurement);
  visit("audit", limits.audit);
  visit("counters", limits.counters);
  visit("energy", limits.energy);
  visit("profiling", limits.profiling);
  visit("teardown", limits.teardown);
}

// A missing key keeps its default, so that a newer parent and an older request still understand each other.
template <class Visitor>
static void describe(Request& request, Visitor& visit) {
  visit("target", request.target);
  visit("gpus", request.gpus);
  visit("sm", request.sm);
  visit("mode", request.mode);
  visit("iterations", request.iterations);
  visit("warmup", request.warmup);
  visit("fixed_iterations", request.fixed_iterations);
  visit("confidence_width", request.confidence_width);
  visit("budget_s", request.budget_s);
  visit("alternate", request.alternate);
  visit("cold_start", request.cold_start);
  visit("reproducible", request.reproducible);
  visit("energy", request.energy);
  visit("energy_window_s", request.energy_window_s);
  visit("ttft_target_ms", request.ttft_target_ms);
  visit("tpot_target_ms", request.tpot_target_ms);
  visit("verify_only", request.verify_only);
  visit("profile", request.profile);
  visit("counters", request.counters);
  visit("seed", request.seed);
  visit("scale", request.scale);
  visit("sizes", request.sizes);
  visit("case", request.sweep_case);
  visit("percentiles", request.percentiles);
  visit("limits", request.limits);
  visit("timeout_multiplier", request.timeout_multiplier);
  visit("rank", request.rank);
  visit("ranks", request.ranks);
  visit("machines", request.machines);
  visit("rank_hub", request.rank_hub);
  visit("rank_key", request.rank_key);
  visit("running_variant_page", request.running_variant_page);
  visit("scratch_parent", request.scratch_parent);
  visit("own_folder", request.own_folder);
  visit("baseline_runs", request.baseline_runs);
  visit("takes_turns", request.takes_turns);
  visit("run_folder", request.run_folder);
}

std::string_view to_string(ProfileLevel level) { return base::word_for(level); }

std::optional<ProfileLevel> profile_level(std::string_view text) { return base::find_word<ProfileLevel>(text); }

void to_json(nlohmann::json& json, const Request& request) { json = base::json_of(request); }

void from_json(const nlohmann::json& json, Request& request) {
  json.at("target").get_to(request.target);
  base::JsonReader reader{json, "request"};
  describe(request, reader);
}

}  // namespace aisp::run
