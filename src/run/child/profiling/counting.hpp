// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "evidence/result.hpp"
#include "measure/execution.hpp"
#include "pair/session.hpp"
#include "profile/range_profiler.hpp"
#include "profile/tools.hpp"
#include "run/child/record.hpp"

namespace aisp::run {

// Reads hardware counters of variants in this process, on the session's first GPU. Each pass is an execution from a cold L2;
// dirty lines that it leaves in L2 are written back and counted with it. Use it only after timed samples: a process that was
// profiled once may be slower.
class Counting {
 public:
  // Throws Unsupported when counters cannot be read here.
  Counting(pair::Session& session, profile::MetricSet set);
  evidence::Counters count(const Variant& variant);

 private:
  pair::Session& session_;
  measure::Executor executor_;
  profile::RangeProfiler profiler_;
  double l2_bytes_ = 0;
};

// Whether the variant's kernels may wait for those of other GPUs, as collectives do: such an execution does not end while one GPU
// is counted.
bool waits_for_other_gpus(const Pair& pair, const Variant& variant);

// Counts all active variants as far as `limit_s` allows; the record gets the reasons for missing ones. CUDA errors propagate.
void profile_counters(pair::Session& session, Record& record, profile::MetricSet set, double limit_s);

}  // namespace aisp::run
