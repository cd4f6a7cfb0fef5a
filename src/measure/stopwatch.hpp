// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <vector>

#include "measure/execution.hpp"
#include "measure/sample.hpp"
#include "pair/session.hpp"

namespace aisp::measure {

// Times single executions of a pair's variants.
class Stopwatch {
 public:
  Stopwatch(pair::Session& session, const Conditions& conditions) : session_{session}, executor_{session, conditions} {}
  virtual ~Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  virtual Sample time(const Variant& variant, Capture& capture) = 0;
  // Times without reading the outputs.
  Sample time(const Variant& variant) {
    Capture capture;
    return time(variant, capture);
  }
  // Times the least work possible in the same way: milliseconds as read. The reading beyond that work's own duration is the
  // stopwatch's offset.
  virtual double time_probe() = 0;

  Executor& executor() { return executor_; }

 protected:
  pair::Session& session_;
  Executor executor_;
};

// Makes a stopwatch of CUDA events around each execution; each sample starts with nothing of the workload in L2 unless the pair
// wants it hot.
std::unique_ptr<Stopwatch> make_event_stopwatch(pair::Session& session, const Conditions& conditions);
// Returns the times of `runs` executions of a variant, as such a stopwatch reads them, or of fewer once they have taken
// `longest_s`. No metrics are asked for: the workload may not have computed yet what they tell. The chip's clock is brought to
// its height by work of the harness.
std::vector<double> event_times_ms(pair::Session& session, const Conditions& conditions, const Variant& variant, int runs,
                                   double longest_s);
// Makes a stopwatch of CUPTI's durations: from the first start to the last end of the work that an execution queued.
std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session& session, const Conditions& conditions);
// Makes a stopwatch of blocks of executions on the host clock, long enough that the clock's own time is negligible (PyTorch's
// Timer).
std::unique_ptr<Stopwatch> make_timer_stopwatch(pair::Session& session, const Conditions& conditions);
// Makes a stopwatch of the steady clock around each execution, for host pairs.
std::unique_ptr<Stopwatch> make_host_stopwatch(pair::Session& session);

}  // namespace aisp::measure
