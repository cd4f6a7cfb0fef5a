// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <set>
#include <vector>

#include "measure/rounds.hpp"
#include "run/child/context.hpp"
#include "run/child/record.hpp"
#include "run/child/stages.hpp"
#include "run/child/timing/renewal.hpp"
#include "run/child/timing/samples.hpp"
#include "verify/leaks.hpp"
#include "verify/sample_watch.hpp"

namespace aisp::run {

// Observers of the rounds: the results of samples, their inputs, and the memory they leave.
struct Watchers {
  verify::SampleWatch& samples;
  PresentInputs& inputs;
  verify::LeakWatch& leaks;
};

// Implements the callbacks of measure::sample_rounds for a pair: timing, checks and reports of each round. `samples` grows with
// them.
class TimedRounds {
 public:
  TimedRounds(const Context& context, const Stages& stages, Record& record, measure::Stopwatch& stopwatch,
              const Watchers& watchers, Samples& samples)
      : context_{context}, stages_{stages}, record_{record}, stopwatch_{stopwatch}, watchers_{watchers}, samples_{samples} {}

  // Takes all samples. Call it once.
  measure::Sampling take(const measure::SamplingOptions& options);

 private:
  double now_s() const { return context_.ranks.now_s(); }  // what the time decides is the same on all ranks
  void renew(Renewal::Kind kind);
  void before_round(int round);
  measure::Sample time(std::size_t index);
  void note_limits(std::size_t index);
  measure::Interval speedup(const std::vector<measure::Sample>& baseline, const std::vector<measure::Sample>& variant);
  void after_round(int round);
  void read_state(int round);
  void tell(int round, int expected, const measure::SamplingOptions& options) const;
  void send_partial();

  const Context& context_;
  const Stages& stages_;
  Record& record_;
  measure::Stopwatch& stopwatch_;
  Watchers watchers_;
  Samples& samples_;
  std::set<std::size_t> limits_told_;  // variants whose changed limits have been reported
  int present_round_ = 0;
  double start_s_ = 0, round_start_s_ = 0;
  double round_s_ = 0;  // duration of the last one
  double last_partial_s_ = 0, last_state_s_ = 0;
  double looked_at_ = 0;  // relative width of the last interval inspected; one that was too wide, if any was
};

}  // namespace aisp::run
