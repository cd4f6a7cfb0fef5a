// SPDX-License-Identifier: Apache-2.0
#include "run/results/assemble.hpp"

#include <algorithm>
#include <map>

#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

struct AnsweredRequest {  // to one request
  double first_ms = 0, last_ms = 0;
  std::size_t tokens = 0;
  bool has_tpot() const { return tokens > 1; }
  double tpot_ms() const { return (last_ms - first_ms) / static_cast<double>(tokens - 1); }
};

bool within(const AnsweredRequest& answer, const LatencyTargets& targets) {
  if (targets.ttft_ms > 0 && answer.first_ms > targets.ttft_ms) return false;
  return targets.tpot_ms <= 0 || !answer.has_tpot() || answer.tpot_ms() <= targets.tpot_ms;
}

struct CollectedTokens {
  std::vector<double> ttft_ms, tpot_ms, request_tpot_ms;
  std::size_t requests = 0, tokens = 0, good = 0;
  double total_ms = 0;
};

void collect(const measure::Sample& sample, double offset_ms, const LatencyTargets& targets, CollectedTokens& all) {
  std::map<int, AnsweredRequest> answers;
  for (const auto& mark : sample.marks) {
    if (!mark.name.empty()) continue;
    const auto [found, is_first] = answers.try_emplace(mark.request, AnsweredRequest{.first_ms = mark.at_ms});
    AnsweredRequest& answer = found->second;
    if (is_first) all.ttft_ms.push_back(mark.at_ms);
    else all.tpot_ms.push_back(mark.at_ms - answer.last_ms);
    answer.last_ms = mark.at_ms;
    ++answer.tokens;
    ++all.tokens;
  }
  for (const auto& [request, answer] : answers) {
    if (answer.has_tpot()) all.request_tpot_ms.push_back(answer.tpot_ms());
    all.good += within(answer, targets);
  }
  all.requests += answers.size();
  all.total_ms += std::max(sample.raw_ms - offset_ms, 0.0);
}

}  // namespace

std::optional<evidence::InferenceTiming> inference_of(const std::vector<measure::Sample>& samples, double offset_ms,
                                                      const LatencyTargets& targets, const std::vector<double>& percentiles) {
  CollectedTokens all;
  for (const measure::Sample& sample : samples) collect(sample, offset_ms, targets, all);
  if (all.tokens == 0) return std::nullopt;
  const auto per_second = [&](std::size_t count) {
    return all.total_ms > 0 ? static_cast<double>(count) * 1e3 / all.total_ms : 0.0;
  };
  evidence::InferenceTiming timing;
  timing.ttft_ms = measure::summarize(all.ttft_ms, percentiles);
  timing.tpot_ms = measure::summarize(all.tpot_ms, percentiles);
  timing.request_tpot_ms = measure::summarize(all.request_tpot_ms, percentiles);
  timing.requests = all.requests / samples.size();
  timing.tokens = all.tokens / samples.size();
  timing.tokens_per_second = per_second(all.tokens);
  if (targets.any())
    timing.goodput = evidence::LatencyGoodput{.ttft_target_ms = targets.ttft_ms,
                                              .tpot_target_ms = targets.tpot_ms,
                                              .good_requests = all.good,
                                              .all_requests = all.requests,
                                              .percent = static_cast<double>(all.good) * 100 / static_cast<double>(all.requests),
                                              .requests_per_second = per_second(all.good)};
  return timing;
}

}  // namespace aisp::run
