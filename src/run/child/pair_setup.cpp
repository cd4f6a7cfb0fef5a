// SPDX-License-Identifier: Apache-2.0
#include "run/child/pair_setup.hpp"

#include <algorithm>

#include "base/system/clock.hpp"
#include "base/system/process_memory.hpp"
#include "measure/statistics/statistics.hpp"
#include "run/child/profiling/profiler.hpp"
#include "run/child/verification/memory_account.hpp"
#include "run/results/declarations.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {
namespace {

// If the baseline cannot run, or none of the optimized variants, neither can the pair.
bool skip_unmet(const Context& context, Record& record) {
  Needs of_rank = context.pair.needs;
  if (context.ranks.several()) of_rank.ranks = {}, of_rank.peer_access = false;  // the parent has seen to them
  if (of_rank.ranks.least > 1) {
    record.skip("needs a process for each of its ranks; leave --in-process out");
    return true;
  }
  if (auto reason = context.environment.unmet(of_rank, context.pair.device)) {
    record.skip(std::move(*reason));
    return true;
  }
  for (const Variant* variant : record.active())
    if (auto reason = context.environment.unmet(variant->needs, context.pair.device))
      record.skip_variant(variant->name, std::move(*reason));
  const std::vector<evidence::VariantResult>& variants = record.result().variants;
  const bool baseline_runs = variants.front().status != evidence::Status::skipped;
  const bool any_optimized = std::ranges::any_of(variants, [](const evidence::VariantResult& variant) {
    return variant.role == evidence::VariantRole::optimized && variant.status != evidence::Status::skipped;
  });
  if (baseline_runs && any_optimized) return false;
  record.skip(baseline_runs ? variants[1].reason : variants.front().reason);
  return true;
}

void describe_workload(const Context& context, Record& record, pair::Session& session) {
  evidence::PairResult& result = record.result();
  result.sizes = session.sizes();
  add_ranks(result, context.request);
  result.narrow_types = std::ranges::any_of(session.buffers(), [](const Buffer& buffer) {
    return buffer.type == ElementType::e4m3 || buffer.type == ElementType::e5m2 || holds_codes(buffer.type);
  });
  watch_ranges(session);
  for (evidence::VariantResult& variant : result.variants) {
    variant.cost = declared(session.workload().variant_cost(variant.name));
    variant.memory.device_allocated_bytes = session.device_bytes();
  }
  result.ceilings = context.environment.ceilings(result.variants);
}

void check_costs(const Context& context, Record& record, pair::Session& session) {
  for (const Variant* variant : record.active())
    if (auto fault = impossible_cost(session.workload().variant_cost(variant->name), context.pair.device))
      record.problem(std::string{variant->name}, "declared_cost", std::move(*fault), "correct the workload's cost()");
}

// Times the first call in a new process, with code loading, allocation and library set-up.
void time_first_run(const Variant& variant, pair::Session& session, evidence::VariantResult& result) {
  result.prepare_ms = session.prepare(variant);
  session.reset(variant);
  const double start_s = base::monotonic_s();
  session.submit(variant);
  session.synchronize_all();
  const double value = (base::monotonic_s() - start_s) * 1e3;
  evidence::Metric metric{.name = "cold_start", .unit = "ms", .better = evidence::Direction::lower, .raw = {value}};
  metric.summary = measure::summarize(metric.raw);
  result.metrics.push_back(std::move(metric));
}

void time_first_runs(Record& record, pair::Session& session) {
  for (const Variant* variant : record.active()) {
    verify::Outcome outcome{.variant = variant->name};
    verify::guarded(outcome, "cold_start", [&] { time_first_run(*variant, session, record.of(variant->name)); });
    for (evidence::Problem& found : outcome.problems) found.stage = record.stage();
    record.absorb_failures(outcome);
  }
}

}  // namespace

pair::SessionOptions session_options(const Context& context) {
  return {.gpus = context.environment.gpus(),
          .seed = context.request.seed,
          .scale = context.request.scale * context.environment.memory_scale(),
          .sizes = context.request.sizes,
          .reproducible = context.request.reproducible,
          .red_zones = !base::under_memory_checker(),
          .scratch_parent = context.request.scratch_parent,
          .ranks = &context.ranks};
}

std::optional<std::uint64_t> set_up(const Context& context, Record& record, Resources& resources) {
  if (skip_unmet(context, record)) return std::nullopt;
  pair::SessionOptions options = session_options(context);
  record.result().scale = options.scale;
  const std::uint64_t free_bytes = context.pair.device == Device::gpu ? free_device_bytes(context.environment.gpus()) : 0;
  resources.session = std::make_unique<pair::Session>(context.pair, std::move(options));
  pair::Session& session = *resources.session;
  describe_workload(context, record, session);
  check_costs(context, record, session);
  record.agree(context.ranks);
  if (record.passed() && context.request.cold_start) time_first_runs(record, session);
  return record.passed() ? std::optional{free_bytes} : std::nullopt;
}

}  // namespace aisp::run
