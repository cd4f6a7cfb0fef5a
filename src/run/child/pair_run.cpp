// SPDX-License-Identifier: Apache-2.0
#include "run/child/pair_run.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/system/clock.hpp"
#include "base/system/memory_checker.hpp"
#include "evidence/json.hpp"
#include "evidence/limits.hpp"
#include "measure/statistics/statistics.hpp"
#include "pair/all_variants.hpp"
#include "profile/activity.hpp"
#include "run/child/ground.hpp"
#include "run/child/memory_account.hpp"
#include "run/child/profiler.hpp"
#include "run/results/assemble.hpp"
#include "run/results/cost_faults.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {
PairRun::PairRun(const pair::Entry& entry, const Request& request, const Reporter& reporter)
    : pair_{*entry.pair},
      request_{request},
      reporter_{reporter},
      stages_{reporter},
      result_{blank_result(entry, request)},
      start_{entry.pair->start} {
  const auto add = [&](const Variant& variant, evidence::VariantRole role) {
    evidence::VariantResult& added = result_.variants.emplace_back();
    added.name = variant.name;
    added.role = role;
    added.changes_precision = variant.changes_precision;
    added.computes_output = variant.outputs != no_outputs;
    added.not_run = variant.not_run;
  };
  add(pair_.baseline, evidence::VariantRole::baseline);
  for (const Variant& variant : pair_.optimized) add(variant, evidence::VariantRole::optimized);
  if (pair_.controls)
    for (const Variant& variant : *pair_.controls) add(variant, evidence::VariantRole::control);
  if (pair_.libraries)
    for (const Variant& variant : *pair_.libraries) add(variant, evidence::VariantRole::library);
}

PairRun::~PairRun() = default;

evidence::PairResult run_pair(const pair::Entry& entry, const Request& request, const Reporter& reporter) {
  return PairRun{entry, request, reporter}.run();
}

evidence::PairResult PairRun::run() {
  const profile::Scope range{result_.target};
  try {
    run_stages();
  } catch (const Unsupported& reason) {
    result_.status = evidence::Status::skipped;
    result_.reason = reason.what();
  } catch (const CudaError& error) {
    problem({}, "cuda", error.what(),
            error.status() == cudaErrorMemoryAllocation ? "close other users of the GPU or choose a smaller --scale or --size"
                                                        : "run the pair under compute-sanitizer");
    // The context is poisoned: nothing on the GPU can be freed or trusted any more. The process ends next.
    [[maybe_unused]] const auto* leaked_session = session_.release();
    [[maybe_unused]] const auto* leaked_stopwatch = stopwatch_.release();
  } catch (const std::bad_alloc&) {
    problem({}, "memory", "the machine's memory is exhausted", "close other programs or choose a smaller --scale or --size");
  } catch (const std::exception& error) {
    problem({}, "exception", error.what());
  } catch (...) {
    problem({}, "exception", "an exception of an unknown type was thrown");
  }
  settle();
  return std::move(result_);
}

void PairRun::run_stages() {
  stages_.begin("setup", request_.limits.setup);
  if (request_.reproducible) demand_deterministic_libraries();
  ground_ = std::make_unique<Ground>(result_.gpus);
  // From here on, so that its presence tells nothing of the stage.
  if (pair_.device == Device::gpu) profile::ActivityRecorder::unavailable();
  result_.lost = ground_->lost();
  if (skip_unmet()) return;
  set_up();
  if (!costs_are_possible()) return;
  if (request_.cold_start && !time_first_runs()) return;
  stages_.begin("verify", request_.limits.verify);
  if (!verify_all(false, result_.seed)) return;
  account_memory();
  if (request_.verify_only) {
    if (!verify_edges()) return;
    look_inside();
    return tear_down();
  }
  send_partial();
  stages_.begin("warmup", request_.limits.warmup);
  warm_up();
  stages_.begin("measurement", request_.limits.measurement);
  measure_rounds();
  if (result_.status != evidence::Status::passed) return tear_down();
  stages_.begin("audit", request_.limits.audit);
  audit();
  take_offset();
  judge();
  measure_energy();
  stages_.begin("reverify", request_.limits.verify);
  if (!verify_all(true, random_bits(result_.seed, 0x5EED))) return;
  look_inside();
  tear_down();
}

bool PairRun::skip_unmet() {
  if (const auto reason = ground_->unmet(pair_.needs, pair_.device)) {
    result_.status = evidence::Status::skipped;
    result_.reason = *reason;
    return true;
  }
  for (const Variant* variant : active()) {
    const auto reason = ground_->unmet(variant->needs, pair_.device);
    if (!reason) continue;
    evidence::VariantResult& skipped = result_of(variant->name);
    skipped.status = evidence::Status::skipped;
    skipped.reason = *reason;
  }
  const bool baseline_runs = result_.variants.front().status != evidence::Status::skipped;
  const bool any_optimized =
      std::any_of(result_.variants.begin(), result_.variants.end(), [](const evidence::VariantResult& variant) {
        return variant.role == evidence::VariantRole::optimized && variant.status != evidence::Status::skipped;
      });
  if (baseline_runs && any_optimized) return false;
  result_.status = evidence::Status::skipped;
  result_.reason = baseline_runs ? result_.variants[1].reason : result_.variants.front().reason;
  return true;
}

void PairRun::set_up() {
  result_.scale = request_.scale * ground_->memory_scale();
  if (pair_.device == Device::gpu) free_before_bytes_ = free_device_bytes(ground_->gpus());
  session_ = std::make_unique<pair::Session>(pair_, session_options(false));
  result_.sizes = session_->sizes();
  watch_ranges(*session_);
  for (evidence::VariantResult& variant : result_.variants) {
    variant.cost = declared(session_->workload().variant_cost(variant.name));
    variant.memory.device_allocated_bytes = session_->device_bytes();
  }
  result_.ceilings = ground_->ceilings(result_.variants);
}

bool PairRun::costs_are_possible() {
  for (const Variant* variant : active())
    if (auto fault = impossible_cost(session_->workload().variant_cost(variant->name), pair_.device))
      problem(std::string{variant->name}, "declared_cost", std::move(*fault), "correct the workload's cost()");
  return result_.status == evidence::Status::passed;
}

// Code loading, allocation and library set-up included: what the first call in a new process costs. False when a variant failed.
bool PairRun::time_first_runs() {
  for (const Variant* variant : active()) {
    verify::Outcome outcome{.variant = variant->name};
    verify::guarded(outcome, "cold_start", [&] {
      result_of(variant->name).prepare_ms = session_->prepare(*variant);
      session_->reset(*variant);
      const double start_s = base::monotonic_s();
      session_->submit(*variant);
      session_->synchronize_all();
      const double value = (base::monotonic_s() - start_s) * 1e3;
      evidence::Metric metric{.name = "cold_start", .unit = "ms", .better = evidence::Direction::lower, .raw = {value}};
      metric.summary = measure::summarize(metric.raw);
      result_of(variant->name).metrics.push_back(std::move(metric));
    });
    for (evidence::Problem& found : outcome.problems) found.stage = stages_.current();
    absorb_failures(outcome);
  }
  return result_.status == evidence::Status::passed;
}

pair::SessionOptions PairRun::session_options(bool small_shape) const {
  return {.gpus = ground_->gpus(),
          .seed = result_.seed,
          .scale = result_.scale,
          .sizes = request_.sizes,
          .small_shape = small_shape,
          .reproducible = request_.reproducible,
          .red_zones = !base::under_memory_checker(),
          .scratch_parent = request_.scratch_parent};
}

std::vector<const Variant*> PairRun::active() const {
  std::vector<const Variant*> variants = pair::all_variants(pair_);
  std::erase_if(variants, [&](const Variant* variant) {
    return std::ranges::find(result_.variants, variant->name, &evidence::VariantResult::name)->status != evidence::Status::passed;
  });
  return variants;
}

void PairRun::tear_down() {
  stages_.begin("teardown", request_.limits.teardown);
  stopwatch_.reset();
  session_.reset();
  stages_.end();
}

void PairRun::settle() {
  stages_.end();
  if (result_.status != evidence::Status::passed)
    for (evidence::VariantResult& variant : result_.variants) clear_claims(variant);
  if (result_.status != evidence::Status::passed) result_.best.clear();
  // Nothing ran yet, so nothing can be said of any variant, least of all that it passed.
  const auto passed = [](const evidence::VariantResult& variant) { return variant.status == evidence::Status::passed; };
  if (result_.status != evidence::Status::passed && outcomes_.empty() && std::ranges::all_of(result_.variants, passed))
    result_.variants.clear();
  evidence::name_limits(result_);
  note_host_memory();
  result_.watchdog = stages_.records();
  result_.wall_s = stages_.elapsed_s();
}

void PairRun::note_host_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  for (evidence::VariantResult& variant : result_.variants)
    if (variant.memory.host_peak_rss_bytes == 0)
      variant.memory.host_peak_rss_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

void PairRun::send_partial() {
  evidence::PairResult partial = result_;
  partial.complete = false;
  partial.watchdog = stages_.records();
  partial.wall_s = stages_.elapsed_s();
  reporter_.send(evidence::json_text(nlohmann::json{{"partial", partial}}));
}

evidence::VariantResult& PairRun::result_of(std::string_view variant) {
  return *std::find_if(result_.variants.begin(), result_.variants.end(),
                       [&](const evidence::VariantResult& result) { return result.name == variant; });
}

// Of a library, which costs the pair nothing.
void PairRun::leave_out(evidence::VariantResult& library, const std::string& why) {
  clear_claims(library);
  for (evidence::VariantResult& variant : result_.variants)
    if (variant.library_share && variant.library_share->library == library.name) variant.library_share.reset();
  result_.warnings.push_back("library " + library.name + " was left out: " + why);
}

void PairRun::problem(std::string variant, std::string check, std::string message, std::string advice) {
  result_.status = evidence::Status::failed;
  if (!edge_.empty()) message = edge_ + ": " + message;
  if (result_.reason.empty()) result_.reason = variant.empty() ? message : variant + ": " + message;
  const std::string stage = stages_.current().empty() ? "teardown" : stages_.current();
  result_.problems.push_back({stage, std::move(variant), std::move(check), std::move(message), std::move(advice)});
}

}  // namespace aisp::run
