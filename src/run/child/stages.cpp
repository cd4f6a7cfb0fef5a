// SPDX-License-Identifier: Apache-2.0
#include "run/child/stages.hpp"

#include <nlohmann/json.hpp>
#include <string>

#include "pair/running_variant.hpp"
#include "profile/ranges.hpp"

namespace aisp::run {

double Stages::elapsed_s() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

double Stages::left_s() const { return records_.back().started_s + records_.back().limit_s - elapsed_s(); }

void Stages::begin(evidence::Stage stage, double limit_s) {
  end();
  current_ = stage;
  pair::note_running_variant({});
  const std::string name{to_string(stage)};
  profile::push_range(name.c_str());
  records_.push_back({.stage = stage, .started_s = elapsed_s(), .limit_s = limit_s});
  reporter_.send(nlohmann::json{{"stage", name}, {"limit_s", limit_s}}.dump());
}

void Stages::end() {
  if (current_ == evidence::Stage::none) return;
  profile::pop_range();
  evidence::StageRecord& record = records_.back();
  record.elapsed_s = elapsed_s() - record.started_s;
  record.finished = true;
  reporter_.send(nlohmann::json{{"stage_done", to_string(current_)}, {"elapsed_s", record.elapsed_s}}.dump());
  current_ = evidence::Stage::none;
}

void Stages::await(Turn turn) {
  end();
  reporter_.send(nlohmann::json{{"turn_wanted", to_string(turn)}}.dump());
  reporter_.await_answer();
}

void Stages::tell(const RoundProgress& progress) const {
  reporter_.send(nlohmann::json{{"progress",
                                 {{"round", progress.round},
                                  {"of", progress.of},
                                  {"interval_percent", progress.interval_percent},
                                  {"wanted_percent", progress.wanted_percent},
                                  {"spent_s", progress.spent_s},
                                  {"budget_s", progress.budget_s}}}}
                     .dump());
}

}  // namespace aisp::run
