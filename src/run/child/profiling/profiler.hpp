// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <string>

#include "evidence/profile/profile.hpp"
#include "measure/execution.hpp"
#include "pair/session.hpp"
#include "profile/ranges.hpp"
#include "profile/recording.hpp"

namespace aisp::run {

struct ProfiledVariant {
  evidence::Profile profile;
  std::string trace;  // Chrome trace
};

// Executes a GPU pair's variants untimed under CUPTI, started as the timed ones were: released by a gate or at once, with a cold
// or a hot L2. Throws Unsupported without CUPTI.
class Profiler {
 public:
  Profiler(pair::Session& session, Start start, Cache cache);
  ~Profiler();
  // `timed_ms`: median of its timed samples; 0 if none can be compared with the recording.
  ProfiledVariant run(const Variant& variant, const std::string& target, double timed_ms);

 private:
  profile::Recording record(const Variant& variant, profile::Detail detail);

  pair::Session& session_;
  Start start_;
  measure::Executor executor_;
  std::map<int, profile::SmLimits> limits_;
  profile::ActivityRecorder recorder_;
};

// Profiles one execution of a host pair's variant by the kernel's counts for this process; its trace has the pair's ranges and
// marks, and the resident memory at each of them.
ProfiledVariant profile_on_host(pair::Session& session, const Variant& variant, const std::string& target);

// Turns the workload's marks into NVTX ranges and marks.
inline void watch_ranges(pair::Session& session) {
  session.launch().on_push_range = profile::push_range;
  session.launch().on_pop_range = profile::pop_range;
  session.launch().on_mark = profile::mark;
}

}  // namespace aisp::run
