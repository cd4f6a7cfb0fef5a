// SPDX-License-Identifier: Apache-2.0
#include "run/child/profiling/profiler.hpp"

#include <sys/resource.h>
#include <aisp/check.hpp>

#include <functional>
#include <utility>

#include "base/system/clock.hpp"
#include "base/system/process_memory.hpp"
#include "measure/gpu_kernels.hpp"
#include "profile/recording.hpp"

namespace aisp::run {
namespace {

// Logs a pair's own ranges and marks, too, as long as it lives.
class LoggedRanges {
 public:
  LoggedRanges(pair::LaunchState& launch, profile::RangeLog& log)
      : launch_{launch}, push_{launch.on_push_range}, pop_{launch.on_pop_range}, mark_{launch.on_mark} {
    launch.on_push_range = [&](const char* name) {
      log.push(name);
      if (push_) push_(name);
    };
    launch.on_pop_range = [&] {
      if (pop_) pop_();
      log.pop();
    };
    launch.on_mark = [&](const char* name) {
      log.mark(name);
      if (mark_) mark_(name);
    };
  }
  ~LoggedRanges() {
    launch_.on_push_range = std::move(push_);
    launch_.on_pop_range = std::move(pop_);
    launch_.on_mark = std::move(mark_);
  }
  LoggedRanges(const LoggedRanges&) = delete;
  LoggedRanges& operator=(const LoggedRanges&) = delete;

 private:
  pair::LaunchState& launch_;
  std::function<void(const char*)> push_;
  std::function<void()> pop_;
  std::function<void(const char*)> mark_;
};

double milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
}

rusage usage_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

std::uint64_t between(long before, long after) { return static_cast<std::uint64_t>(after - before); }

}  // namespace

Profiler::Profiler(pair::Session& session, Start start, Cache cache)
    : session_{session}, start_{start}, executor_{session, {.start = start, .cache = cache}} {
  for (const int ordinal : session.gpu_ordinals()) limits_[ordinal] = profile::sm_limits(ordinal);
}

Profiler::~Profiler() = default;

profile::Recording Profiler::record(const Variant& variant, profile::Detail detail) {
  recorder_.start(detail);
  // CUPTI's work at the first launch of each kernel and graph took 0.1 ms and more, which the second does not pay.
  executor_.load(variant);
  measure::Capture capture{.digest = false};
  executor_.make_ready(variant, capture);
  recorder_.forget();
  profile::RangeLog log{profile::ActivityRecorder::now_ns};
  const LoggedRanges logged{session_.launch(), log};
  std::uint64_t begin_ns = 0, end_ns = 0;
  const measure::Frame frame{.begin =
                                 [&](cudaStream_t stream) {
                                   measure::launch_sample_begin(stream);
                                   begin_ns = profile::ActivityRecorder::now_ns();
                                 },
                             .end =
                                 [&](cudaStream_t stream) {
                                   end_ns = profile::ActivityRecorder::now_ns();
                                   measure::launch_sample_end(stream);
                                 }};
  executor_.perform(variant, capture, frame);
  profile::Recording recording = profile::framed(recorder_.stop(), start_ == Start::released);
  recording.ranges = log.take();
  recording.host_begin_ns = begin_ns;
  recording.host_end_ns = end_ns;
  return recording;
}

ProfiledVariant Profiler::run(const Variant& variant, const std::string& target, double timed_ms) {
  const profile::Recording device = record(variant, profile::Detail::device);
  const profile::Recording everything = record(variant, profile::Detail::everything);
  ProfiledVariant profiled;
  profiled.profile = profile::summarize(device, everything, limits_);
  profile::shorten_to_timed(profiled.profile, timed_ms);
  profiled.trace = profile::chrome_trace(
      everything, {target, std::string{variant.name}, static_cast<double>(session_.device_bytes()), profiled.profile.span_ms});
  return profiled;
}

namespace {

evidence::HostProfile between(const rusage& before, const rusage& after, const profile::Recording& recording) {
  return {.wall_ms = static_cast<double>(recording.host_end_ns - recording.host_begin_ns) * 1e-6,
          .user_ms = milliseconds(after.ru_utime) - milliseconds(before.ru_utime),
          .system_ms = milliseconds(after.ru_stime) - milliseconds(before.ru_stime),
          .voluntary_switches = between(before.ru_nvcsw, after.ru_nvcsw),
          .involuntary_switches = between(before.ru_nivcsw, after.ru_nivcsw),
          .minor_faults = between(before.ru_minflt, after.ru_minflt),
          .major_faults = between(before.ru_majflt, after.ru_majflt)};
}

}  // namespace

ProfiledVariant profile_on_host(pair::Session& session, const Variant& variant, const std::string& target) {
  profile::Recording recording;
  const auto now_ns = [] { return static_cast<std::uint64_t>(base::monotonic_s() * 1e9); };
  const auto look_at_memory = [&](std::uint64_t at_ns) { recording.resident.push_back({at_ns, base::resident_bytes()}); };
  profile::RangeLog log{[&] {
    look_at_memory(now_ns());
    return now_ns();
  }};
  session.reset(variant);
  look_at_memory(now_ns());
  const LoggedRanges logged{session.launch(), log};
  const rusage before = usage_now();
  recording.host_begin_ns = now_ns();
  session.submit(variant);
  recording.host_end_ns = now_ns();
  const rusage after = usage_now();
  look_at_memory(recording.host_end_ns);
  recording.ranges = log.take();
  ProfiledVariant profiled;
  profiled.profile.host = between(before, after, recording);
  profiled.trace = profile::chrome_trace(recording, {target, std::string{variant.name}});
  return profiled;
}

}  // namespace aisp::run
