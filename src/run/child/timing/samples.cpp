// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "evidence/result.hpp"
#include "measure/statistics/clock_step.hpp"
#include "run/results/assemble.hpp"

namespace aisp::run {
namespace {

// The probe kernel's own duration on an H200; used if CUPTI is missing.
constexpr double assumed_probe_ms = 0.0013;
// The error of event times, minus their offset, against CUPTI's durations (tests/measure/agreement_gpu_test.cu).
constexpr double events_accuracy_ms = 2e-4;
// The same without CUPTI: the smallest kernel takes between 0.8 and 1.8 us on any GPU.
constexpr double assumed_accuracy_ms = 5e-4;

// A state is read after each round; without alternation the rounds of one variant follow those of the one before.
std::span<const evidence::GpuState> states_of(std::span<const evidence::GpuState> states, std::size_t variant,
                                              std::size_t variants, bool alternate) {
  if (alternate) return states;
  const std::size_t rounds = states.size() / variants;
  return states.subspan(variant * rounds, rounds);
}

}  // namespace

ProbeWork assumed_probe_work(const Context& context) {
  const TimingMode mode = context.request.mode;
  const bool by_events = context.pair.device == Device::gpu && (mode == TimingMode::events || mode == TimingMode::do_bench);
  return {.ms = by_events ? assumed_probe_ms : 0};
}

measure::Correction correction_of(const Pair& pair, const Samples& samples, const ProbeWork& work) {
  std::vector<std::vector<double>> readings{samples.probe_ms};
  for (const Timed& timed : samples.timed) readings.push_back(raw_times_of(timed.samples));
  measure::Correction correction{.probe = samples.probe_ms, .probe_work = work.ms};
  correction.step = measure::clock_step_ms(readings);
  if (pair.device == Device::host) correction.accuracy = correction.offset();
  else if (work.ms > 0) correction.accuracy = work.measured ? events_accuracy_ms : assumed_accuracy_ms;
  return correction;
}

void take_slowest(pair::RankGroup& ranks, measure::Sample& sample) {
  if (!ranks.several()) return;
  struct RankTimes {
    double raw_ms, host_ms, run_ms, early_ms, late_ms, cpu_wait_ms;
    bool knows_wait;
  };
  const RankTimes own{sample.raw_ms,
                      sample.host_ms,
                      sample.run_ms,
                      sample.early_ms,
                      sample.late_ms,
                      sample.cpu_wait_ms.value_or(0),
                      sample.cpu_wait_ms.has_value()};
  double least_ms = sample.raw_ms;
  const std::vector<RankTimes> all = ranks.values("the end of a sample", own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const RankTimes& each = all[rank];
    least_ms = std::min(least_ms, each.raw_ms);
    sample.raw_ms = std::max(sample.raw_ms, each.raw_ms);
    sample.host_ms = std::max(sample.host_ms, each.host_ms);
    sample.run_ms = std::max(sample.run_ms, each.run_ms);
    sample.early_ms = std::max(sample.early_ms, each.early_ms);
    sample.late_ms = std::max(sample.late_ms, each.late_ms);
    if (each.knows_wait && sample.cpu_wait_ms) sample.cpu_wait_ms = std::max(*sample.cpu_wait_ms, each.cpu_wait_ms);
    else sample.cpu_wait_ms.reset();
    sample.metrics.push_back({fmt::format("rank_{}_time", rank), each.raw_ms, "ms", Metrics::Better::lower});
  }
  sample.metrics.push_back({"rank_skew", (sample.raw_ms - least_ms) * 1e3, "us", Metrics::Better::lower});
}

void note_times(const Request& request, Record& record, const std::vector<Timed>& timed, const measure::Correction& correction) {
  const std::vector<evidence::GpuState>& states = record.result().gpu_states;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    if (timed[i].samples.empty()) continue;
    evidence::Timing& timing = timed[i].result->timing.emplace(timing_of(timed[i].samples, correction, request.percentiles));
    timing.sm_clock_mhz = evidence::median_sm_clock_mhz(states_of(states, i, timed.size(), request.alternate));
  }
}

}  // namespace aisp::run
