// SPDX-License-Identifier: Apache-2.0
#include "run/child/profiling/pair_profile.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <functional>

#include "base/system/files.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "profile/activity.hpp"
#include "profile/ranges.hpp"
#include "run/child/profiling/counting.hpp"
#include "run/child/profiling/profiler.hpp"

namespace aisp::run {
namespace {

void count(const Context& context, Stages& stages, Record& record, Resources& resources) {
  const double limit_s = context.request.limits.counters;
  record.send_measured();
  stages.begin(evidence::Stage::counters, limit_s);
  const auto set = context.request.counters == CounterLevel::full ? profile::MetricSet::full : profile::MetricSet::deep;
  try {
    profile_counters(*resources.session, record, set, limit_s);
  } catch (const std::exception& error) {
    record.lose(evidence::LostKind::counters, fmt::format("no counters: {}", error.what()));
    resources.abandon();  // measurements are complete
  }
}

// Returns the median of one execution from its start to its end on the GPU; 0 in modes that time something else.
double comparable_ms(TimingMode mode, const evidence::VariantResult& variant) {
  return mode == TimingMode::events && variant.timing ? variant.timing->summary.median : 0;
}

void note_profile(const std::string& run_folder, const evidence::PairResult& pair, evidence::VariantResult& variant,
                  ProfiledVariant profiled) {
  if (!run_folder.empty()) {
    const std::string trace = fmt::format("{}/profiles/{}.trace.json", evidence::folder_of(pair), variant.name);
    base::write_atomically(std::filesystem::path{run_folder} / trace, profiled.trace);
    profiled.profile.trace = trace;
  }
  variant.profile = std::move(profiled.profile);
}

using ProfileOne = std::function<ProfiledVariant(const Variant& variant, double timed_ms)>;

// `present`: the name of the variant at work, for the handler of an exception.
void profile_each(const Context& context, Record& record, const ProfileOne& profile_one, std::string& present) {
  for (const Variant* variant : record.active()) {
    present = variant->name;
    {
      const profile::Scope range{present};
      evidence::VariantResult& result = record.of(variant->name);
      note_profile(context.request.run_folder, record.result(), result,
                   profile_one(*variant, comparable_ms(context.request.mode, result)));
    }
    record.send_partial();
  }
}

void profile_gpu_pair(const Context& context, Record& record, pair::Session& session, Start start, std::string& present) {
  if (const auto& reason = profile::ActivityRecorder::unavailable()) throw Unsupported{*reason};
  Profiler profiler{session, start, context.pair.cache};
  profile_each(
      context, record,
      [&](const Variant& variant, double timed_ms) { return profiler.run(variant, record.result().target, timed_ms); }, present);
}

void profile_host_pair(const Context& context, Record& record, pair::Session& session, std::string& present) {
  profile_each(
      context, record, [&](const Variant& variant, double) { return profile_on_host(session, variant, record.result().target); },
      present);
}

void profile_variants(const Context& context, Stages& stages, Record& record, Resources& resources, Start start) {
  record.send_measured();
  stages.begin(evidence::Stage::profiling, context.request.limits.profiling);
  std::string variant;
  const auto no_profile = [&](const std::string& reason) {
    record.lose(evidence::LostKind::profile,
                fmt::format("no profile{}: {}", variant.empty() ? "" : fmt::format(" of {}", variant), reason));
  };
  pair::Session& session = *resources.session;
  try {
    if (session.on_gpu()) profile_gpu_pair(context, record, session, start, variant);
    else profile_host_pair(context, record, session, variant);
  } catch (const CudaError& error) {
    no_profile(error.what());
    resources.abandon();
  } catch (const std::exception& error) {
    no_profile(error.what());
  } catch (...) {
    no_profile("an exception of an unknown type was thrown");
  }
}

}  // namespace

void profile_pair(const Context& context, Stages& stages, Record& record, Resources& resources, Start start) {
  if (!record.passed()) return;
  const bool asked = context.request.counters != CounterLevel::none || context.request.profile != ProfileLevel::none;
  if (context.ranks.several()) {
    if (asked)
      record.lose(evidence::LostKind::profile, "no profile of ranks: a profiler that repeats one would hold up the others");
    return;
  }
  if (context.request.counters != CounterLevel::none && context.pair.device == Device::gpu)
    count(context, stages, record, resources);
  if (context.request.profile != ProfileLevel::none && resources.session)
    profile_variants(context, stages, record, resources, start);
}

}  // namespace aisp::run
