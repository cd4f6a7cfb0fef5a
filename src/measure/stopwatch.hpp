// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <stdexcept>
#include <string_view>

#include "measure/sample.hpp"
#include "pair/session.hpp"

namespace aisp::measure {

// A variant waited for the GPU while its stream was held back; the pair must be timed from an immediate start.
class WaitsForGpu : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Times single executions of a pair's variants.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual Sample time(const Variant& variant) = 0;
  // The same way, of the least work there is: milliseconds as read. What it reads beyond that work's own duration is the
  // stopwatch's.
  virtual double time_probe() = 0;
};

struct StopwatchOptions {
  Start start = Start::released;
  Cache cache = Cache::cold;
};

// CUDA events around each execution; each sample starts with nothing of the workload in L2 unless the pair wants it hot.
std::unique_ptr<Stopwatch> make_event_stopwatch(pair::Session& session, const StopwatchOptions& options);
// CUPTI's durations: from the first start to the last end of the work that an execution queued.
std::unique_ptr<Stopwatch> make_kernel_stopwatch(pair::Session& session, const StopwatchOptions& options);
// Blocks of executions on the host clock, long enough that the clock's own time vanishes (PyTorch's Timer).
std::unique_ptr<Stopwatch> make_timer_stopwatch(pair::Session& session);
// The steady clock around each execution: host pairs.
std::unique_ptr<Stopwatch> make_host_stopwatch(pair::Session& session);

}  // namespace aisp::measure
