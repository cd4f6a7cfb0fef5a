// SPDX-License-Identifier: Apache-2.0
#include "run/pair_run.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "evidence/json.hpp"
#include "measure/statistics.hpp"
#include "run/assemble.hpp"
#include "run/blank.hpp"
#include "run/memory_account.hpp"
#include "run/reproducible.hpp"

namespace aisp::run {
namespace {

// Clocks need a moment of load to rise from idle.
constexpr double shortest_warmup_s = 0.1;
constexpr double partial_every_s = 1;
// The probe kernel's own duration on an H200; used where CUPTI is missing.
constexpr double assumed_probe_ms = 0.0013;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

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
  };
  add(pair_.baseline, evidence::VariantRole::baseline);
  for (const Variant& variant : pair_.optimized) add(variant, evidence::VariantRole::optimized);
  if (pair_.peers)
    for (const Variant& variant : *pair_.peers) add(variant, evidence::VariantRole::peer);
}

PairRun::~PairRun() = default;

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
  result_.lost = ground_->lost();
  if (skip_unmet()) return;
  set_up();
  if (request_.cold_start && !time_first_runs()) return;
  stages_.begin("verify", request_.limits.verify);
  if (!verify_all("verify", request_.seed)) return;
  account_memory();
  if (request_.verify_only) {
    look_inside();
    return tear_down();
  }
  send_partial();
  stages_.begin("warmup", request_.limits.warmup);
  warm_up();
  stages_.begin("measurement", request_.limits.measurement);
  measure_rounds();
  stages_.begin("audit", request_.limits.audit);
  audit();
  take_offset();
  judge();
  measure_energy();
  stages_.begin("reverify", request_.limits.verify);
  if (!verify_all("reverify", random_bits(request_.seed, 0x5EED))) return;
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

// Code loading, allocation and library set-up included: what the first call in a new process costs. False when a variant failed.
bool PairRun::time_first_runs() {
  for (const Variant* variant : active()) {
    verify::Outcome outcome{.variant = variant->name};
    verify::guarded(outcome, "cold_start", [&] {
      session_->prepare(*variant);
      session_->before_sample(*variant);
      session_->synchronize_all();
      const double start_s = now_s();
      session_->execute(*variant, pair::default_poison);
      session_->synchronize_all();
      const double value = (now_s() - start_s) * 1e3;
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
          .seed = request_.seed,
          .scale = result_.scale,
          .sizes = request_.sizes,
          .small_shape = small_shape,
          .reproducible = request_.reproducible,
          .red_zones = std::getenv("AISP_MEMORY_CHECKER") == nullptr,
          .scratch_parent = request_.scratch_parent};
}

bool PairRun::verify_all(const std::string& stage, std::uint64_t seed) {
  const bool small = pair_.verification == Verification::small_shape;
  const bool again = stage == "reverify";
  verify::Options options{.seed = seed, .require_repeatable = request_.reproducible, .check_memory = !again};
  if (small) verify_small_shape(options);
  options.compare_with_reference = !small;
  std::vector<verify::Outcome> outcomes = verify::verify(*session_, active(), options, again ? &outcomes_ : nullptr);
  for (verify::Outcome& outcome : outcomes)
    for (evidence::Problem& found : outcome.problems) found.stage = stage;
  absorb(outcomes, !small);
  if (!again) outcomes_ = std::move(outcomes);
  // Only what is left is timed, and outcomes of the second verification line up with it.
  std::erase_if(outcomes_, [&](const verify::Outcome& outcome) { return !outcome.passed(); });
  return result_.status == evidence::Status::passed;
}

void PairRun::verify_small_shape(const verify::Options& options) {
  pair::Session small{pair_, session_options(true)};
  watch_ranges(small);
  absorb(verify::verify(small, active(), options), true);
}

void PairRun::absorb(const std::vector<verify::Outcome>& outcomes, bool with_reference) {
  for (const verify::Outcome& outcome : outcomes) {
    absorb_failures(outcome);
    evidence::VariantResult& variant = result_of(outcome.variant);
    if (with_reference) {
      const double unquantized = variant.accuracy ? variant.accuracy->unquantized_l2 : 0;
      variant.accuracy.reset();
      if (outcome.accuracy.samples > 0) {
        variant.accuracy = outcome.accuracy;
        variant.accuracy->unquantized_l2 = std::max(unquantized, outcome.accuracy.unquantized_l2);
      }
    } else if (variant.accuracy) {
      variant.accuracy->versus_baseline_l2 = std::max(variant.accuracy->versus_baseline_l2, outcome.accuracy.versus_baseline_l2);
      variant.accuracy->bitwise_repeatable &= outcome.accuracy.bitwise_repeatable;
    }
    variant.prepare_ms = outcome.prepare_ms;
    // Of the timed shape where there are two, and of the run's own seed.
    if (stages_.current() == "verify")
      for (const auto& [name, digest] : outcome.digests) variant.output_digests[name] = fmt::format("{:016x}", digest);
  }
}

void PairRun::absorb_failures(const verify::Outcome& outcome) {
  evidence::VariantResult& variant = result_of(outcome.variant);
  if (!outcome.unsupported.empty()) {
    variant.status = evidence::Status::skipped;
    variant.reason = outcome.unsupported;
    if (variant.role == evidence::VariantRole::baseline) throw Unsupported{outcome.unsupported};
  }
  for (const evidence::Problem& found : outcome.problems) {
    variant.status = evidence::Status::failed;
    variant.reason = found.message;
    if (variant.role == evidence::VariantRole::peer) {
      result_.warnings.push_back(fmt::format("peer {} was left out: {}", variant.name, found.message));
      continue;
    }
    result_.problems.push_back(found);
    result_.status = evidence::Status::failed;
    if (result_.reason.empty()) result_.reason = fmt::format("{}: {}", variant.name, found.message);
  }
}

std::vector<const Variant*> PairRun::active() const {
  std::vector<const Variant*> variants;
  const auto add = [&](const Variant& variant) {
    const auto found = std::find_if(result_.variants.begin(), result_.variants.end(),
                                    [&](const evidence::VariantResult& result) { return result.name == variant.name; });
    if (found->status == evidence::Status::passed) variants.push_back(&variant);
  };
  add(pair_.baseline);
  for (const Variant& variant : pair_.optimized) add(variant);
  if (pair_.peers)
    for (const Variant& variant : *pair_.peers) add(variant);
  return variants;
}

std::unique_ptr<measure::Stopwatch> PairRun::make_stopwatch() {
  if (pair_.device == Device::host) return measure::make_host_stopwatch(*session_);
  if (request_.mode == TimingMode::timer) return measure::make_timer_stopwatch(*session_);
  const measure::StopwatchOptions options{start_, pair_.cache};
  if (request_.mode == TimingMode::kernel) return measure::make_kernel_stopwatch(*session_, options);
  return measure::make_event_stopwatch(*session_, options);
}

void PairRun::warm_up() {
  // Until the audit measures it.
  const bool by_events = session_->on_gpu() && (request_.mode == TimingMode::events || request_.mode == TimingMode::do_bench);
  probe_duration_ms_ = by_events ? assumed_probe_ms : 0;
  stopwatch_ = make_stopwatch();
  timed_.clear();
  for (const Variant* variant : active()) timed_.push_back({variant, &result_of(variant->name), {}});
  const int rounds = std::max(request_.warmup, 1);
  const double start_s = now_s();
  try {
    for (int round = 0; round < rounds || (session_->on_gpu() && now_s() - start_s < shortest_warmup_s); ++round) {
      for (const Timed& timed : timed_) {
        const profile::Scope range{timed.result->name};
        stopwatch_->time(*timed.variant);
      }
      probe_ms_.push_back(stopwatch_->time_probe());
    }
  } catch (const measure::WaitsForGpu& variant) {
    if (start_ == Start::immediate) throw;
    result_.warnings.push_back(
        fmt::format("{} waits for the GPU or queues more than fits: timed from an immediate start", variant.what()));
    start_ = Start::immediate;
    probe_ms_.clear();
    return warm_up();
  }
  offset_ms_ = std::max(0.0, measure::median(probe_ms_) - probe_duration_ms_);
}

void PairRun::measure_rounds() {
  if (session_->on_gpu()) result_.start = start_ == Start::released ? "released" : "immediate";
  measure::SamplingOptions options{.min_rounds = std::max(request_.iterations, 1),
                                   .fixed_rounds = request_.fixed_iterations,
                                   .relative_width = request_.confidence_width,
                                   .budget_s = request_.budget_s,
                                   .alternate = request_.alternate,
                                   .seed = request_.seed};
  if (request_.mode == TimingMode::do_bench) options.relative_width = 0;  // time-budgeted
  probe_ms_.clear();
  sample(options);
}

void PairRun::sample(measure::SamplingOptions options) {
  const Judge judge{std::string{pair_.judged_by}, offset_ms_};
  double last_partial_s = now_s();
  measure::SamplingCallbacks callbacks;
  callbacks.time = [&](std::size_t index) {
    const profile::Scope range{timed_[index].result->name};
    const measure::Sample taken = stopwatch_->time(*timed_[index].variant);
    timed_[index].samples.push_back(taken);
    return taken;
  };
  callbacks.judged = judge;
  callbacks.now_s = now_s;
  callbacks.after_round = [&](int round, int expected) {
    probe_ms_.push_back(stopwatch_->time_probe());
    if (session_->on_gpu()) result_.gpu_states.push_back(ground_->sample());
    reporter_.send(nlohmann::json{{"progress", {{"round", round + 1}, {"of", expected}}}}.dump());
    if (now_s() - last_partial_s < partial_every_s) return;
    last_partial_s = now_s();
    take_offset();
    send_partial();
  };
  measure::Sampling sampling = measure::sample_rounds(timed_.size(), options, callbacks);
  for (std::size_t i = 0; i < timed_.size(); ++i) timed_[i].samples = std::move(sampling.samples[i]);
  result_.stopped_because = sampling.stopped_because;
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
    for (evidence::VariantResult& variant : result_.variants) variant.speedup.reset();
  if (result_.status != evidence::Status::passed) result_.best.clear();
  // Nothing ran yet, so nothing can be said of any variant, least of all that it passed.
  const auto passed = [](const evidence::VariantResult& variant) { return variant.status == evidence::Status::passed; };
  if (result_.status != evidence::Status::passed && outcomes_.empty() && std::ranges::all_of(result_.variants, passed))
    result_.variants.clear();
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

void PairRun::problem(std::string variant, std::string check, std::string message, std::string advice) {
  result_.status = evidence::Status::failed;
  if (result_.reason.empty()) result_.reason = variant.empty() ? message : variant + ": " + message;
  const std::string stage = stages_.current().empty() ? "teardown" : stages_.current();
  result_.problems.push_back({stage, std::move(variant), std::move(check), std::move(message), std::move(advice)});
}

}  // namespace aisp::run
