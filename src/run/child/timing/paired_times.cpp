// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/paired_times.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "measure/statistics/statistics.hpp"

namespace aisp::run {
namespace {

constexpr double alike_factor = 1.5, alike_ms = 0.003;
// The means may differ by this share and time. Independent times of one kind exceed so many deviations in one comparison of three
// million.
constexpr double most_below_first = 0.25, least_below_first_ms = 0.002, certain_deviations = 5;

bool nearly_all_longer(std::span<const double> here_ms, std::span<const double> there_ms) {
  std::size_t above = 0;
  for (std::size_t i = 0; i < here_ms.size(); ++i) above += here_ms[i] > there_ms[i];
  return above >= here_ms.size() - here_ms.size() / 6 && longer(measure::median(here_ms), measure::median(there_ms));
}

}  // namespace

bool PairedTimes::longer_here() const {
  if (!enough()) return false;
  const std::size_t half = here_ms.size() / 2;
  const std::span here{here_ms}, there{there_ms};
  return nearly_all_longer(here.first(half), there.first(half)) && nearly_all_longer(here.subspan(half), there.subspan(half));
}

bool longer(double here_ms, double there_ms) { return here_ms > alike_factor * there_ms && here_ms - there_ms > alike_ms; }

bool taken_over(const std::vector<double>& first_ms, const std::vector<double>& later_ms) {
  const double first = measure::trimmed_mean(first_ms), later = measure::trimmed_mean(later_ms);
  return later < (1 - most_below_first) * first && first - later > least_below_first_ms &&
         measure::rank_deviations(first_ms, later_ms) > certain_deviations;
}

PairedTimes beside_watched(const std::vector<measure::Sample>& samples) {
  PairedTimes times;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::optional<double> there = measure::host_ms_without_waits(samples[i]);
    if (!samples[i].watched || !there) continue;
    for (const std::size_t neighbour : {i - 1, i + 1}) {
      if (neighbour >= samples.size() || samples[neighbour].watched) continue;
      const std::optional<double> here = measure::host_ms_without_waits(samples[neighbour]);
      if (!here) continue;
      times.add(*here, *there);
      break;
    }
  }
  return times;
}

}  // namespace aisp::run
