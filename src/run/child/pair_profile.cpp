// SPDX-License-Identifier: Apache-2.0
// The stages behind all others that look inside the variants. Whatever goes wrong here costs what they would have shown, never
// the result.
#include <fmt/format.h>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "profile/activity.hpp"
#include "run/child/counting.hpp"
#include "run/child/pair_run.hpp"
#include "run/child/profiler.hpp"

namespace aisp::run {

void PairRun::look_inside() {
  if (result_.status != evidence::Status::passed) return;
  if (request_.counters != CounterLevel::none && session_->on_gpu()) count();
  if (request_.profile != ProfileLevel::none && session_) profile_variants();
}

// The parent goes by this when a stage that looks inside does not end.
void PairRun::send_measured() {
  note_host_memory();
  send_partial();
}

void PairRun::count() {
  send_measured();
  stages_.begin("counters", request_.limits.counters);
  const auto set = request_.counters == CounterLevel::full ? profile::MetricSet::full : profile::MetricSet::deep;
  const auto place = [&](std::string_view variant) -> evidence::VariantResult& { return result_of(variant); };
  try {
    profile_counters(*session_, active(), set, request_.limits.counters, place, result_.lost);
  } catch (const std::exception& error) {
    result_.lost.push_back({evidence::LostKind::counters, fmt::format("no counters: {}", error.what())});
    abandon_session();
  }
}

// The context may be poisoned: nothing on the GPU can be freed any more. What was measured is complete.
void PairRun::abandon_session() {
  [[maybe_unused]] const auto* leaked_session = session_.release();
  [[maybe_unused]] const auto* leaked_stopwatch = stopwatch_.release();
}

void PairRun::profile_variants() {
  send_measured();
  stages_.begin("profiling", request_.limits.profiling);
  std::string variant;
  try {
    std::unique_ptr<Profiler> profiler;
    if (session_->on_gpu()) {
      if (const auto& reason = profile::ActivityRecorder::unavailable()) throw Unsupported{*reason};
      profiler = std::make_unique<Profiler>(*session_, start_, pair_.cache);
    }
    for (const Variant* each : active()) {
      variant = each->name;
      profile_variant(*each, profiler.get());
      send_partial();
    }
  } catch (const CudaError& error) {
    no_profile(variant, error.what());
    abandon_session();
  } catch (const std::exception& error) {
    no_profile(variant, error.what());
  } catch (...) {
    no_profile(variant, "an exception of an unknown type was thrown");
  }
}

void PairRun::profile_variant(const Variant& variant, Profiler* profiler) {
  const profile::Scope range{std::string{variant.name}};
  evidence::VariantResult& result = result_of(variant.name);
  // The other modes time something else than one execution from its start to its end on the GPU.
  const bool comparable = request_.mode == TimingMode::events && result.timing.has_value();
  const double timed_ms = comparable ? result.timing->summary.median : 0;
  ProfiledVariant profiled = profiler == nullptr ? profile_on_host(*session_, variant, result_.target)
                                                 : profiler->run(variant, result_.target, timed_ms);
  if (!request_.run_folder.empty()) {
    const std::string trace = fmt::format("{}/profiles/{}.trace.json", evidence::folder_of(result_), variant.name);
    base::write_atomically(std::filesystem::path{request_.run_folder} / trace, profiled.trace);
    profiled.profile.trace = trace;
  }
  result.profile = std::move(profiled.profile);
}

void PairRun::no_profile(const std::string& variant, const std::string& reason) {
  result_.lost.push_back({evidence::LostKind::profile,
                          fmt::format("no profile{}: {}", variant.empty() ? "" : fmt::format(" of {}", variant), reason)});
}

}  // namespace aisp::run
