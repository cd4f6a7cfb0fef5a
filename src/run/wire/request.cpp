// SPDX-License-Identifier: Apache-2.0
#include "run/wire/request.hpp"

#include "base/json_fields.hpp"

namespace aisp::run {

static constexpr base::Words<3> words_of(ProfileLevel) { return {{"none", "minimal", "full"}}; }
static constexpr base::Words<3> words_of(CounterLevel) { return {{"none", "deep", "full"}}; }

AISP_DESCRIBE(StageLimits, setup, verify, warmup, measurement, audit, counters, energy, profiling, teardown)

// A missing key keeps its default, so that a newer parent and an older request still understand each other.
template <class Visitor>
static void describe(Request& request, Visitor& visit) {
  AISP_VISIT(visit, request, target, gpus, sm, mode, iterations, warmup, fixed_iterations, confidence_width, budget_s, alternate,
             cold_start, reproducible, energy, energy_window_s, ttft_target_ms, tpot_target_ms, verify_only, profile, counters,
             seed, scale, sizes, percentiles, limits, timeout_multiplier, rank, ranks, machines, rank_hub, rank_key,
             running_variant_page, scratch_parent, own_folder, baseline_runs, takes_turns, run_folder);
  visit("case", request.sweep_case);
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
