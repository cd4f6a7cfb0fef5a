// SPDX-License-Identifier: Apache-2.0
#include "run/child/child.hpp"

#include <fmt/format.h>
#include <aisp/check.hpp>

#include <algorithm>
#include <memory>
#include <new>

#include "base/system/clock.hpp"
#include "measure/cpu_use.hpp"
#include "profile/activity.hpp"
#include "profile/ranges.hpp"
#include "run/child/audit/baseline_alone.hpp"
#include "run/child/audit/pair_audit.hpp"
#include "run/child/context.hpp"
#include "run/child/energy/pair_energy.hpp"
#include "run/child/pair_setup.hpp"
#include "run/child/profiling/pair_profile.hpp"
#include "run/child/timing/pair_sampling.hpp"
#include "run/child/verification/memory_account.hpp"
#include "run/child/verification/pair_verification.hpp"

namespace aisp::run {
namespace {

void tear_down(Stages& stages, double limit_s, Resources& resources) {
  stages.begin(evidence::Stage::teardown, limit_s);
  resources.free();
  stages.end();
}

// Waits until no other pair works. One that works while it waits would lengthen the times of those that are measured meanwhile.
void await_quiet(const Request& request, Stages& stages, Record& record, pair::Session& session) {
  constexpr double least_told_s = 0.05, least_told_share = 0.02;
  if (!request.takes_turns) return;
  session.synchronize_all();
  const double start_s = base::monotonic_s(), worked_before_ms = measure::cpu_ms_of_process();
  stages.await(Turn::quiet);
  const double waited_s = base::monotonic_s() - start_s;
  const double worked_s = (measure::cpu_ms_of_process() - worked_before_ms) * 1e-3;
  if (worked_s < std::max(least_told_s, least_told_share * waited_s)) return;
  record.warn(
      fmt::format("its threads worked for {:.2g} s of the {:.2g} s in which it waited for its turn: pairs that were "
                  "measured meanwhile may have taken longer",
                  worked_s, waited_s));
}

void run_stages(const Pair& pair, const Request& request, pair::RankGroup& ranks, Stages& stages, Record& record,
                Resources& resources) {
  const StageLimits& limits = request.limits;
  stages.begin(evidence::Stage::setup, limits.setup);
  if (request.reproducible) demand_deterministic_libraries();
  const Environment environment{record.result().gpus};
  if (pair.device == Device::host && !request.own_folder.empty()) move_home(request.own_folder);
  // Loads CUPTI now, so that its presence does not reveal the stage.
  if (pair.device == Device::gpu) profile::ActivityRecorder::unavailable();
  for (const evidence::Lost& each : environment.lost()) record.lose(each.kind, each.text);
  const Context context{pair, request, environment, ranks};
  const std::optional<std::uint64_t> free_bytes = set_up(context, record, resources);
  if (record.result().status == evidence::Status::skipped) return;
  record.agree(ranks);
  if (!free_bytes || !record.passed()) return;
  pair::Session& session = *resources.session;
  if (request.baseline_runs > 0) return send_baseline_times(context, record, session);
  stages.begin(evidence::Stage::verify, limits.verify);
  std::optional<double> baseline_first_ms;
  if (session.on_gpu() && !request.verify_only) baseline_first_ms = time_baseline_first(context, record, session);
  const std::optional<Verified> verified = verify_first(context, record, session);
  if (!verified) return;
  account_memory(context, record, session, verified->start, *free_bytes);
  if (request.verify_only) {
    verify_edges(context, stages, record, verified->start);
    if (!record.passed()) return;
    profile_pair(context, stages, record, resources, verified->start);
    return tear_down(stages, limits.teardown, resources);
  }
  record.send_partial();
  await_quiet(request, stages, record, session);
  stages.begin(evidence::Stage::warmup, limits.warmup);
  const double offset_ms = warm_up(context, stages, record, resources, verified->start);
  stages.begin(evidence::Stage::measurement, limits.measurement);
  const Samples samples = measure_rounds(context, stages, record, resources, *verified, offset_ms);
  record.agree(ranks);
  if (!record.passed()) return tear_down(stages, limits.teardown, resources);
  stages.begin(evidence::Stage::audit, limits.audit);
  // CUPTI, which may make a process slower, comes after it.
  if (verified->start != pair.start) baseline_first_ms.reset();
  check_baseline_alone(context, stages, record, resources, samples, baseline_first_ms);
  const ProbeWork probe_work = audit(context, record, resources, verified->start, samples, assumed_probe_work(context));
  judge(context, record, session, samples, correction_of(pair, samples, probe_work));
  measure_energy(context, stages, record, session, samples.timed);
  record.agree(ranks);
  if (request.takes_turns) stages.await(Turn::work);
  stages.begin(evidence::Stage::reverify, limits.verify);
  const std::optional<Start> start = verify_again(context, record, session, *verified);
  if (!start) return;
  profile_pair(context, stages, record, resources, *start);
  tear_down(stages, limits.teardown, resources);
}

}  // namespace

evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter) {
  std::unique_ptr<pair::RankGroup> ranks;
  const char* left = nullptr;
  Stages stages{reporter};
  Record record{entry, request, stages, reporter};
  // Frees what the stages have not, after the result is sent and when no stage and its limit run any more.
  Resources resources;
  const profile::Scope range{record.result().target};
  try {
    ranks = std::make_unique<pair::RankGroup>(
        pair::RankGroup::Place{request.rank, request.ranks, request.rank_hub, request.rank_key, request.machines == 1});
    run_stages(*entry.pair, request, *ranks, stages, record, resources);
  } catch (const pair::RanksApart& reason) {
    record.problem({}, "ranks", reason.what());
    left = pair::left_lost;
  } catch (const Unsupported& reason) {
    record.skip(reason.what());
  } catch (const CudaError& error) {
    record.problem({}, "cuda", error.what(),
                   error.status() == cudaErrorMemoryAllocation
                       ? "close other users of the GPU or choose a smaller --scale or --size"
                       : "run the pair under compute-sanitizer");
    resources.abandon();
  } catch (const std::bad_alloc&) {
    record.problem({}, "memory", "the machine's memory is exhausted",
                   "close other programs or choose a smaller --scale or --size");
  } catch (const std::exception& error) {
    record.problem({}, "exception", error.what());
  } catch (...) {
    record.problem({}, "exception", "an exception of an unknown type was thrown");
  }
  stages.end();
  if (left == nullptr)
    left = record.passed()                                       ? pair::left_passed
           : record.result().status == evidence::Status::skipped ? pair::left_skipped
                                                                 : pair::left_failed;
  if (ranks) ranks->leave(left, record.result().reason);
  return record.finish();
}

}  // namespace aisp::run
