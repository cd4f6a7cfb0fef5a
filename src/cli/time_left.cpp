// SPDX-License-Identifier: Apache-2.0
#include "cli/time_left.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace aisp::cli {

TimeLeft::TimeLeft(std::map<std::string, double> expected_s, std::size_t at_once)
    : expected_s_{std::move(expected_s)}, at_once_{std::max<std::size_t>(at_once, 1)} {}

void TimeLeft::begun(const std::string& label, double now_s) { running_[label] = {.began_s = now_s, .rounds = {}}; }

void TimeLeft::progressed(const std::string& label, const run::RoundProgress& rounds) {
  if (const auto found = running_.find(label); found != running_.end() && rounds.of > 0) found->second.rounds = rounds;
}

void TimeLeft::ended(const std::string& label, double now_s) {
  const auto found = running_.find(label);
  if (found == running_.end()) return;  // skipped, which takes no time
  measured_s_ += now_s - found->second.began_s;
  expected_of_measured_s_ += expected_s(label);
  running_.erase(found);
}

double TimeLeft::mean_expected_s() const {
  double sum_s = 0;
  for (const auto& [label, time_s] : expected_s_) sum_s += time_s;
  return expected_s_.empty() ? 0 : sum_s / static_cast<double>(expected_s_.size());
}

double TimeLeft::expected_s(const std::string& label) const {
  const auto found = expected_s_.find(label);
  return found == expected_s_.end() ? mean_expected_s() : found->second;
}

double TimeLeft::whole_s(const std::string& label, const Running& running, double factor, double now_s) const {
  const double spent_s = now_s - running.began_s, usual_s = std::max(spent_s, factor * expected_s(label));
  const run::RoundProgress& rounds = running.rounds;
  if (rounds.round <= 0) return usual_s;
  const double round_s = rounds.spent_s / rounds.round;
  return std::max(usual_s, spent_s + round_s * std::max(0, rounds.of - rounds.round));
}

double TimeLeft::factor(double now_s) const {
  const double of_measured = expected_of_measured_s_ > 0 ? measured_s_ / expected_of_measured_s_ : 1;
  double with_running_s = measured_s_, expected_with_running_s = expected_of_measured_s_;
  for (const auto& [label, running] : running_) {
    with_running_s += whole_s(label, running, of_measured, now_s);
    expected_with_running_s += expected_s(label);
  }
  return expected_with_running_s > 0 ? std::max(of_measured, with_running_s / expected_with_running_s) : of_measured;
}

std::string TimeLeft::text(std::size_t waiting, double now_s) const {
  const double times = factor(now_s);
  double left_s = times * mean_expected_s() * static_cast<double>(waiting);
  for (const auto& [label, running] : running_) left_s += whole_s(label, running, times, now_s) - (now_s - running.began_s);
  left_s /= static_cast<double>(std::min(at_once_, std::max<std::size_t>(waiting + running_.size(), 1)));
  return left_s > 0 ? base::human_duration(left_s) + " left" : std::string{};
}

}  // namespace aisp::cli
