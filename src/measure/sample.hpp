// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/workload.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pair/launch_state.hpp"

namespace aisp::measure {

struct MetricValue {
  std::string name;
  double value = 0;
  std::string unit;
  Metrics::Better better = Metrics::Better::lower;
  bool is_rate = false;  // the value is a count, reported divided by the sample's time
};

// One timed execution.
struct Sample {
  int round = 0;
  double raw_ms = 0;                      // as the stopwatch read it
  double host_ms = 0;                     // host clock, start to work finished
  double run_ms = 0;                      // host clock, in run(); unknown for the timer's blocks
  double early_ms = 0;                    // how long other streams were busy before the sample
  double late_ms = 0;                     // how long the GPUs stayed busy after its end
  std::optional<double> cpu_wait_ms = 0;  // as in Executed
  double caller_cpu_ms = 0;               // likewise
  std::uint64_t inputs = 0;               // the seed of the present variable inputs
  bool first_on_inputs = false;           // no variant had run on these inputs before
  bool again_on_inputs = false;           // this variant had run on them before
  bool watched = false;                   // looked at more closely (Capture::watch)
  std::vector<pair::Mark> marks;
  std::vector<MetricValue> metrics;
};

// Returns the workload's metrics of the execution of `variant` that has just ended.
std::vector<MetricValue> collect_metrics(Workload& workload, std::string_view variant);

// Returns a sample's time by the host's clock without waits for a CPU; nothing if they are unknown. Threads may have waited
// before and after the sample, too, but what the caller computed in it was no wait.
std::optional<double> host_ms_without_waits(const Sample& sample);
// Returns the samples' own host time, without the CPU time that other programs took; 0 if that is known of none. Long samples are
// disturbed more often than short ones, so if most are disturbed all count, each with the waits of all threads subtracted. That
// is less than its own time, as threads wait at once and a thread that spins until a moment has come spins less; hence the upper
// quartile.
double own_host_ms(const std::vector<Sample>& samples);

}  // namespace aisp::measure
