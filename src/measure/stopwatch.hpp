// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

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
  // The same way, of the least work there is: milliseconds as read. What it reads beyond that work's own duration is the
  // stopwatch's.
  virtual double time_probe() = 0;

  Executor& executor() { return executor_; }

 protected:
  pair::Session& session_;
  Executor executor_;
};

// CUDA events around each execution; each sample starts with nothing of the workload in L2 unless the pair wants it hot.
std::unique_ptr<Stopwatch> make_event_stopwatch(pair::Session& session, const Conditions& conditions);
// CUPTI's durations: from the first start to the last end of the work that an execution queued.
std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session& session, const Conditions& conditions);
// Blocks of executions on the host clock, long enough that the clock's own time vanishes (PyTorch's Timer).
std::unique_ptr<Stopwatch> make_timer_stopwatch(pair::Session& session, const Conditions& conditions);
// The steady clock around each execution: host pairs.
std::unique_ptr<Stopwatch> make_host_stopwatch(pair::Session& session);

}  // namespace aisp::measure
