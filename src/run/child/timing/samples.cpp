// SPDX-License-Identifier: Apache-2.0
#include "run/child/timing/samples.hpp"

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

void note_times(const Request& request, Record& record, const std::vector<Timed>& timed, const measure::Correction& correction) {
  const std::vector<evidence::GpuState>& states = record.result().gpu_states;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    if (timed[i].samples.empty()) continue;
    evidence::Timing& timing = timed[i].result->timing.emplace(timing_of(timed[i].samples, correction, request.percentiles));
    timing.sm_clock_mhz = evidence::median_sm_clock_mhz(states_of(states, i, timed.size(), request.alternate));
  }
}

}  // namespace aisp::run
