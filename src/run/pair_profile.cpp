// SPDX-License-Identifier: Apache-2.0
// The stage behind all others that looks inside the variants. Whatever goes wrong here costs the profile, never the result.
#include <fmt/format.h>

#include "base/error.hpp"
#include "base/files.hpp"
#include "evidence/profile_difference.hpp"
#include "profile/activity.hpp"
#include "run/pair_run.hpp"
#include "run/profiler.hpp"

namespace aisp::run {

void PairRun::watch_ranges(pair::Session& session) {
  session.launch().on_push_range = profile::push_range;
  session.launch().on_pop_range = profile::pop_range;
  session.launch().on_mark = profile::mark;
}

void PairRun::profile_variants() {
  if (request_.profile == ProfileLevel::none || result_.status != evidence::Status::passed) return;
  // The parent goes by this when the stage does not end.
  note_host_memory();
  send_partial();
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
    // The context may be poisoned, and what was measured is complete.
    [[maybe_unused]] const auto* leaked_session = session_.release();
    [[maybe_unused]] const auto* leaked_stopwatch = stopwatch_.release();
  } catch (const std::exception& error) {
    no_profile(variant, error.what());
  } catch (...) {
    no_profile(variant, "an exception of an unknown type was thrown");
  }
}

void PairRun::profile_variant(const Variant& variant, Profiler* profiler) {
  const profile::Scope range{std::string{variant.name}};
  evidence::VariantResult& result = result_of(variant.name);
  if (profiler == nullptr) {
    result.profile = profile_on_host(*session_, variant);
    return;
  }
  ProfiledVariant profiled = profiler->run(variant, result_.target);
  if (!request_.run_folder.empty()) {
    const std::string trace = fmt::format("{}_{}/profiles/{}.trace.json", result_.chapter, result_.name, variant.name);
    base::write_atomically(std::filesystem::path{request_.run_folder} / trace, profiled.trace);
    profiled.profile.trace = trace;
  }
  result.profile = std::move(profiled.profile);
}

void PairRun::no_profile(const std::string& variant, const std::string& reason) {
  result_.warnings.push_back(
      fmt::format("{}{}: {}", evidence::no_profile, variant.empty() ? "" : fmt::format(" of {}", variant), reason));
}

}  // namespace aisp::run
