// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/expectations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/math/statistics.hpp"
#include "evidence/ceilings.hpp"
#include "evidence/expectations/change.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

namespace {

using Runs = std::vector<const RecordedRun*>;

RecordedMetrics median_of(const std::vector<const RecordedMetrics*>& runs) {
  RecordedMetrics medians;
  std::map<std::string, std::vector<double>> values;
  for (const RecordedMetrics* run : runs)
    for (const auto& [name, metric] : *run) {
      medians[name] = metric;
      values[name].push_back(metric.value);
    }
  for (auto& [name, metric] : medians) metric.value = base::median(values[name]);
  return medians;
}

Recorded recorded_by(const Runs& runs) {
  const RecordedRun& latest = *runs.back();
  std::set<std::string> gpu_ids;
  for (const RecordedRun* run : runs) gpu_ids.insert(run->gpu_ids.begin(), run->gpu_ids.end());
  return {.date_utc = latest.date_utc,
          .run_id = latest.run_id,
          .aisp_version = latest.aisp_version,
          .commit = latest.commit,
          .gpu = latest.fingerprint.gpu,
          .driver = latest.fingerprint.driver,
          .cuda = latest.fingerprint.cuda,
          .cpu = latest.fingerprint.cpu,
          .power_limit_w = latest.fingerprint.power_limit_w,
          .cpus_usable = latest.fingerprint.cpus_usable,
          .numa_nodes = latest.fingerprint.numa_nodes,
          .hypervisor = latest.fingerprint.hypervisor,
          .runs = static_cast<int>(runs.size()),
          .gpu_ids = std::move(gpu_ids)};
}

ExpectedVariant expected_variant(const std::string& name, const Runs& runs, const ProcessSpread& assumed) {
  std::vector<Range> speedups;
  std::vector<double> medians, floors_ms;
  std::vector<const RecordedMetrics*> metrics;
  for (const RecordedRun* run : runs) {
    const auto found = run->variants.find(name);
    if (found == run->variants.end()) continue;
    speedups.push_back({found->second.speedup, found->second.speedup_low, found->second.speedup_high});
    medians.push_back(found->second.median_ms);
    metrics.push_back(&found->second.metrics);
    if (found->second.percent_of_floor) floors_ms.push_back(*found->second.percent_of_floor / 100 * found->second.median_ms);
  }
  const Range speedup = expected_of_runs(speedups, assumed);
  ExpectedVariant variant{.speedup = speedup.value,
                          .speedup_low = speedup.low,
                          .speedup_high = speedup.high,
                          .median_ms = base::median(medians),
                          .metrics = median_of(metrics)};
  for (const Range& each : speedups) variant.speedups.push_back(each.value);
  variant.medians_ms = medians;
  // Ceilings are measured, and no chip gives more than it can: the best of all runs is the nearest to that.
  if (!floors_ms.empty() && variant.median_ms > 0)
    variant.percent_of_floor = std::ranges::min(floors_ms) / variant.median_ms * 100;
  return variant;
}

// `pair` with what follows from these of its runs.
ExpectedPair expect(const ExpectedPair& pair, const Runs& runs) {
  ExpectedPair expected = pair;
  expected.source_digest = runs.back()->source_digest;
  expected.recorded = recorded_by(runs);
  std::vector<double> baselines;
  std::vector<const RecordedMetrics*> metrics;
  for (const RecordedRun* run : runs) {
    baselines.push_back(run->baseline_median_ms);
    metrics.push_back(&run->baseline_metrics);
  }
  expected.baseline_median_ms = base::median(baselines);
  expected.baseline_medians_ms = baselines;
  expected.baseline_metrics = median_of(metrics);
  expected.variants.clear();
  for (const RecordedRun* run : runs)
    for (const auto& [name, values] : run->variants) {
      if (expected.variants.contains(name)) continue;
      ExpectedVariant& variant = expected.variants[name];
      variant = expected_variant(name, runs, pair.host_decides ? process_spread_of_host : process_spread_of_gpu);
      if (const auto known = pair.variants.find(name); known != pair.variants.end()) {
        variant.role = known->second.role;
        variant.cost = known->second.cost;
      }
    }
  return expected;
}

Runs of_code(const Runs& runs, const std::string& source_digest) {
  Runs same;
  for (const RecordedRun* run : runs)
    if (run->source_digest == source_digest) same.push_back(run);
  return same;
}

Runs of_host(const Runs& runs, const Fingerprint& host) {
  Runs same;
  for (const RecordedRun* run : runs)
    if (run->fingerprint == host || host_differences(run->fingerprint, host).empty()) same.push_back(run);
  return same;
}

RecordedRun run_of(const PairResult& pair, const Manifest& manifest) {
  RecordedRun run{.date_utc = pair.started_utc,
                  .run_id = manifest.run_id,
                  .aisp_version = manifest.aisp_version,
                  .commit = manifest.commit + (manifest.dirty ? "+changes" : ""),
                  .source_digest = pair.source_digest,
                  .machine = {},
                  .fingerprint = fingerprint_of(pair, manifest),
                  .gpu_ids = pair.device == Device::host ? gpu_ids(manifest_of(pair, manifest)) : gpu_ids(pair),
                  .baseline_metrics = {},
                  .variants = {}};
  run.machine = id_of(run.fingerprint);
  for (const VariantResult& variant : pair.variants) {
    if (!variant.timing) continue;
    if (variant.role == VariantRole::baseline) {
      run.baseline_median_ms = variant.timing->summary.median;
      run.baseline_metrics = metrics_to_record(pair, variant);
    }
    if (!variant.speedup) continue;
    RecordedVariant& into = run.variants[variant.name];
    into = {.speedup = variant.speedup->value,
            .speedup_low = variant.speedup->low,
            .speedup_high = variant.speedup->high,
            .median_ms = variant.timing->summary.median,
            .metrics = metrics_to_record(pair, variant)};
    if (variant.floor) into.percent_of_floor = variant.floor->percent;
  }
  return run;
}

// Whether an earlier run still says something beside a later one.
bool is_kept(const RecordedRun& earlier, const RecordedRun& later, bool host_decides) {
  if (earlier.run_id == later.run_id && earlier.date_utc == later.date_utc) return false;
  if (earlier.source_digest == later.source_digest) return true;
  return host_decides && earlier.fingerprint != later.fingerprint &&
         !host_differences(earlier.fingerprint, later.fingerprint).empty();
}

// Returns the better of two runs' ceilings on GPUs of one kind: they are measured, and no chip gives more than it can. Returns
// `latest` if hosts decide, which are of any kind.
std::optional<ResultCeilings> best_ceilings(const ExpectedPair* earlier, const PairResult& latest) {
  std::optional<ResultCeilings> best = latest.ceilings;
  if (!best || earlier == nullptr || !earlier->ceilings || latest.device == Device::host || latest.host_dependent) return best;
  take_better(best->memory_bytes_s, best->memory_from, earlier->ceilings->memory_bytes_s, earlier->ceilings->memory_from);
  for (const auto& [math, flops_s] : earlier->ceilings->flops_s)
    take_better_flops(*best, math, flops_s, source_of_flops(*earlier->ceilings, math));
  return best;
}

// Adds what a reader should know before the expectation is committed.
void add_doubts(const PairResult& pair, const std::string& hardware, const ExpectedPair& expected, ExpectationUpdate& recording) {
  constexpr double widest = 1.5;
  Runs all;
  for (const RecordedRun& run : expected.runs) all.push_back(&run);
  const Runs runs = of_code(all, pair.source_digest);
  for (const auto& [name, variant] : expected.variants) {
    std::vector<Range> speedups;
    std::vector<const RecordedRun*> those;
    for (const RecordedRun* run : runs)
      if (const auto found = run->variants.find(name); found != run->variants.end()) {
        speedups.push_back({found->second.speedup, found->second.speedup_low, found->second.speedup_high});
        those.push_back(run);
      }
    const std::vector<bool> apart = runs_apart(speedups);
    if (!apart.empty() && apart.back())
      recording.far.push_back(
          fmt::format("{} {}: {} measured {:.3g}x, where the {} before it have {:.3g}x; it is recorded, but says nothing of how "
                      "runs differ",
                      pair.target, name, those.back()->run_id, speedups.back().value, speedups.size() - 1, variant.speedup));
    const bool is_wide = variant.speedup_low > 0 && variant.speedup_high / variant.speedup_low > widest;
    recording.wide[fmt::format("{} {} {}", pair.target, name, hardware)] =
        !is_wide
            ? ""
            : fmt::format(
                  "{} {}: the expected interval [{:.3g}, {:.3g}] is a factor of {:.3g} wide, so a loss below {:.0f} % passes",
                  pair.target, name, variant.speedup_low, variant.speedup_high, variant.speedup_high / variant.speedup_low,
                  100 * (1 - variant.speedup_low / variant.speedup));
  }
}

}  // namespace

Applicable applicable(const ExpectedPair& recorded, const std::string& source_digest, const Fingerprint& here,
                      const std::vector<std::string>& gpus_here) {
  Applicable result;
  Runs runs;
  for (const RecordedRun& run : recorded.runs) runs.push_back(&run);
  if (recorded.host_decides) {
    const Fingerprint& latest = runs.back()->fingerprint;
    Runs same = of_host(runs, here);
    if (same.empty()) {
      result.machine_differences = host_differences(latest, here);
      same = of_host(runs, latest);
    } else {
      Runs of_this_host;
      std::optional<std::string> why;
      for (const RecordedRun* run : same)
        if (std::optional<std::string> other = other_host(here, gpus_here, run->gpu_ids)) why = std::move(other);
        else of_this_host.push_back(run);
      if (!of_this_host.empty()) same = std::move(of_this_host);
      else if (why) result.machine_differences = {*why};
    }
    runs = std::move(same);
  }
  Runs same = of_code(runs, source_digest);
  result.same_code = !same.empty();
  if (same.empty()) same = of_code(runs, runs.back()->source_digest);
  result.expected = expect(recorded, same);
  return result;
}

const Fingerprint& most_recorded_machine(const ExpectedPair& recorded) {
  Runs runs;
  for (const RecordedRun& run : recorded.runs) runs.push_back(&run);
  const Runs latest = of_code(runs, runs.back()->source_digest);
  const RecordedRun* shown = latest.back();
  std::size_t most = of_host(latest, shown->fingerprint).size();
  for (auto run = latest.rbegin(); run != latest.rend(); ++run)
    if (const std::size_t count = of_host(latest, (*run)->fingerprint).size(); count > most) {
      most = count;
      shown = *run;
    }
  return shown->fingerprint;
}

fs::path expectations_path(const fs::path& folder, const std::string& hardware, const std::string& chapter) {
  return folder / hardware / (chapter + ".json");
}

std::string variant_without_number(const PairResult& pair) {
  for (const VariantResult& variant : pair.variants)
    if (variant.speedup && !is_ratio({variant.speedup->value, variant.speedup->low, variant.speedup->high})) return variant.name;
  return {};
}

std::optional<std::string> not_recordable(const PairResult& pair) {
  if (pair.status != Status::passed) return "it did not pass";
  if (!pair.complete) return "its process ended early";
  if (pair.lesson.empty()) return "an aisp wrote it that knew no lessons";
  if (pair.scale != 1) return fmt::format("it ran at scale {}", pair.scale);
  if (pair.sizes_set) return fmt::format("it ran with sizes set: {}", sizes_text(pair));
  if (pair.timing_mode != TimingMode::events) return "it was timed in mode " + std::string{to_string(pair.timing_mode)};
  if (best_variant(pair) == nullptr) return "no optimized variant was timed";
  return std::nullopt;
}

ExpectedPair expected_of(const PairResult& pair, const Manifest& manifest, const ExpectedPair* earlier) {
  const RecordedRun latest = run_of(pair, manifest);
  ExpectedPair expected{.bound = pair.bound,
                        .judged_by = pair.judged_by,
                        .lesson = pair.lesson,
                        .host_decides = pair.host_dependent,
                        .ceilings = best_ceilings(earlier, pair)};
  if (earlier != nullptr && earlier->judged_by == pair.judged_by)
    std::copy_if(earlier->runs.begin(), earlier->runs.end(), std::back_inserter(expected.runs),
                 [&](const RecordedRun& run) { return is_kept(run, latest, expected.host_decides); });
  for (const VariantResult& variant : pair.variants) {
    if (!variant.timing) continue;
    if (variant.role == VariantRole::baseline) {
      expected.baseline = variant.name;
      expected.baseline_cost = variant.cost;
    }
    if (variant.speedup) expected.variants[variant.name] = {.role = variant.role, .cost = variant.cost};
  }
  expected.runs.push_back(latest);
  return applicable(expected, latest.source_digest, latest.fingerprint).expected;
}

std::string best_variant(const ExpectedPair& pair) {
  std::string best;
  double most = 0;
  for (const auto& [name, variant] : pair.variants) {
    if (variant.role != VariantRole::optimized || variant.speedup < most) continue;
    if (variant.speedup == most && name != pair.lesson) continue;
    best = name;
    most = variant.speedup;
  }
  return best;
}

ExpectationUpdate record(const fs::path& folder, const SuiteResult& suite, const Manifest& manifest) {
  ExpectationUpdate recording;
  std::map<fs::path, Expectations> files;
  const auto why_not = [&](const PairResult& pair) -> std::optional<std::string> {
    if (auto why = not_recordable(pair)) return why;
    if (hardware_key(pair, manifest).empty()) return "the run's manifest does not know its GPU";
    const std::string variant = variant_without_number(pair);
    return variant.empty() ? std::nullopt : std::optional{fmt::format("the speedup of {} is no number", variant)};
  };
  for (const PairResult& pair : suite.pairs) {
    if (const auto why = why_not(pair)) {
      recording.left_out.emplace_back(label_in_run(pair), *why);
      continue;
    }
    const std::string hardware = hardware_key(pair, manifest);
    const fs::path path = expectations_path(folder, hardware, pair.chapter);
    auto found = files.find(path);
    if (found == files.end()) {
      found = files.emplace(path, read_expectations(path).value_or(Expectations{})).first;
      found->second.hardware = hardware;
      found->second.chapter = pair.chapter;
    }
    auto& pairs = found->second.pairs;
    const auto earlier = pairs.find(pair.name);
    pairs[pair.name] = expected_of(pair, manifest, earlier == pairs.end() ? nullptr : &earlier->second);
    add_doubts(pair, hardware, pairs[pair.name], recording);
    recording.recorded.push_back(pair.target);
  }
  for (const auto& [path, expectations] : files) {
    write_expectations(path, expectations);
    recording.files.push_back(path);
  }
  return recording;
}

RecordedMetrics metrics_to_record(const PairResult& pair, const VariantResult& variant) {
  RecordedMetrics metrics;
  const auto add = [&](const std::string& name, double value, const std::string& unit, Direction better) {
    if (std::isfinite(value)) metrics.insert({name, {value, unit, better}});
  };
  for (const Metric& metric : variant.metrics) add(metric.name, metric.summary.median, metric.unit, metric.better);
  if (variant.inference) {
    add("ttft", variant.inference->ttft_ms.median, "ms", Direction::lower);
    // A request of one token has no further one.
    if (variant.inference->tpot_ms.count > 0) add("tpot", variant.inference->tpot_ms.median, "ms", Direction::lower);
    add("tokens_per_second", variant.inference->tokens_per_second, "tokens/s", Direction::higher);
  }
  if (variant.accuracy && (pair.narrow_types || std::ranges::any_of(pair.variants, &VariantResult::changes_precision))) {
    const bool is_further_off = variant.changes_precision && variant.accuracy->unquantized_l2 > 0;
    add("relative_l2_error", 100 * (is_further_off ? variant.accuracy->unquantized_l2 : variant.accuracy->relative_l2), "%",
        Direction::lower);
  }
  return metrics;
}

}  // namespace aisp::evidence
