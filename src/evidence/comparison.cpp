// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

#include "evidence/analysis.hpp"

namespace aisp::evidence {
namespace {

// Clocks jitter by less than this between two equal runs under a power cap.
constexpr double telling_clock_change = 0.02;

struct Quantity {
  std::string name, unit;
  Direction better = Direction::lower;
  Range range;
};

Range exactly(double value) { return {value, value, value}; }

void add_inference(const InferenceTiming& timing, std::vector<Quantity>& quantities) {
  quantities.push_back({"ttft", "ms", Direction::lower, exactly(timing.ttft_ms.median)});
  quantities.push_back({"tpot", "ms", Direction::lower, exactly(timing.tpot_ms.median)});
  if (timing.goodput)
    quantities.push_back({"good_requests", "1/s", Direction::higher, exactly(timing.goodput->requests_per_second)});
}

// Everything that was measured of a variant, in the order of the table.
std::vector<Quantity> quantities_of(const VariantResult& variant) {
  std::vector<Quantity> quantities;
  if (const auto time = time_range(variant)) quantities.push_back({"time", "ms", Direction::lower, *time});
  if (variant.speedup)
    quantities.push_back(
        {"speedup", "x", Direction::higher, {variant.speedup->value, variant.speedup->low, variant.speedup->high}});
  if (variant.floor) quantities.push_back({"percent_of_floor", "%", Direction::higher, exactly(variant.floor->percent)});
  if (const auto goodput = goodput_percent(variant)) quantities.push_back({"goodput", "%", Direction::higher, exactly(*goodput)});
  if (variant.prepare_ms > 0) quantities.push_back({"prepare", "ms", Direction::lower, exactly(variant.prepare_ms)});
  if (variant.memory.device_peak_bytes > 0)
    quantities.push_back({"device_peak", "B", Direction::lower, exactly(static_cast<double>(variant.memory.device_peak_bytes))});
  if (variant.memory.host_peak_rss_bytes > 0)
    quantities.push_back(
        {"host_peak_rss", "B", Direction::lower, exactly(static_cast<double>(variant.memory.host_peak_rss_bytes))});
  if (variant.inference) add_inference(*variant.inference, quantities);
  if (const auto& energy = variant.energy)
    quantities.push_back({"energy", "J", Direction::lower, {energy->median_j, energy->low_j, energy->high_j}});
  for (const Metric& metric : variant.metrics)
    quantities.push_back({metric.name, metric.unit, metric.better,
                          metric.raw.empty() ? exactly(metric.summary.median) : median_range(metric.raw)});
  return quantities;
}

double median_clock_mhz(const PairResult& pair) {
  std::vector<double> clocks;
  for (const GpuState& state : pair.gpu_states)
    if (state.sm_clock_mhz > 0) clocks.push_back(state.sm_clock_mhz);
  return median_range(clocks).value;
}

std::string clock_detail(const PairResult& before, const PairResult& after) {
  const double first = median_clock_mhz(before), second = median_clock_mhz(after);
  if (!(first > 0) || !(second > 0) || std::abs(second / first - 1) < telling_clock_change) return {};
  return fmt::format("median SM clock {:.0f} MHz, then {:.0f} MHz", first, second);
}

// A single reading has no interval; what is within the threshold of it is no news.
Change change_within(const Quantity& before, const Quantity& after, double threshold) {
  const Change change = change_of(before.range, after.range, before.better, threshold);
  const bool without_intervals = before.range.low == before.range.high && after.range.low == after.range.high;
  const bool slight = change == Change::slightly_worse || change == Change::slightly_better;
  return without_intervals && slight ? Change::same : change;
}

void add_metrics(const PairResult& pair, const VariantResult& before, const VariantResult& after, double threshold,
                 std::vector<MetricChange>& changes) {
  const std::vector<Quantity> later = quantities_of(after);
  for (const Quantity& quantity : quantities_of(before)) {
    const auto same_name = [&](const Quantity& other) { return other.name == quantity.name && other.unit == quantity.unit; };
    const auto found = std::find_if(later.begin(), later.end(), same_name);
    if (found == later.end()) continue;
    changes.push_back({.target = label_in_run(pair),
                       .variant = after.name,
                       .metric = quantity.name,
                       .unit = quantity.unit,
                       .better = quantity.better,
                       .before = quantity.range,
                       .after = found->range,
                       .change_percent = change_percent(quantity.range.value, found->range.value),
                       .change = change_within(quantity, *found, threshold),
                       .detail = {}});
  }
}

bool is_repeatable(const VariantResult& variant) { return variant.accuracy && variant.accuracy->bitwise_repeatable; }

void add_outputs(const PairResult& pair, const VariantResult& before, const VariantResult& after, Comparison& comparison) {
  for (const auto& [output, digest] : before.output_digests) {
    const auto later = after.output_digests.find(output);
    if (later == after.output_digests.end()) continue;
    if (later->second == digest) ++comparison.equal_outputs;
    else comparison.outputs.push_back({label_in_run(pair), after.name, output, is_repeatable(before) && is_repeatable(after)});
  }
}

const VariantResult* passed_variant(const PairResult& pair, const std::string& name) {
  for (const VariantResult& variant : pair.variants)
    if (variant.name == name && variant.status == Status::passed) return &variant;
  return nullptr;
}

void compare_pairs(const PairResult& before, const PairResult& after, double threshold, Comparison& comparison) {
  if (before.source_digest != after.source_digest) comparison.source_changed.push_back(label_in_run(before));
  if (before.status != after.status)
    comparison.statuses.push_back({label_in_run(before), before.status, after.status, after.reason});
  if (before.status != Status::passed || after.status != Status::passed) return;
  // A pair that declared no sizes yet ran at its full ones, which are not known here: what was set is something else.
  const bool both_known = !before.sizes.empty() && !after.sizes.empty();
  if (before.sizes != after.sizes && (both_known || before.sizes_set || after.sizes_set)) {
    const auto text = [](const PairResult& pair) { return pair.sizes.empty() ? "not known" : sizes_text(pair); };
    comparison.sizes.push_back({label_in_run(before), text(before), text(after)});
    return;
  }
  const std::string clocks = clock_detail(before, after);
  const std::size_t first = comparison.metrics.size();
  const bool same_inputs = before.seed == after.seed && before.scale == after.scale;
  for (const VariantResult& variant : before.variants) {
    const VariantResult* later = passed_variant(after, variant.name);
    if (variant.status != Status::passed || later == nullptr) continue;
    add_metrics(before, variant, *later, threshold, comparison.metrics);
    if (same_inputs) add_outputs(before, variant, *later, comparison);
  }
  for (std::size_t i = first; i < comparison.metrics.size(); ++i)
    if (comparison.metrics[i].metric == "time" && comparison.metrics[i].change != Change::same)
      comparison.metrics[i].detail = clocks;
}

// How likely a field of the manifest explains a change; the order of the list is the order of the table.
constexpr auto likely_fields = std::to_array<std::string_view>(
    {"gpus",         "driver_version", "power_limit_w",  "sm_clock_max_mhz", "commit",      "dirty", "cuda",
     "aisp_version", "build_type",     "compilers",      "configuration",    "environment", "cpu",   "libraries",
     "kernel",       "container",      "virtualization", "memory_bytes",     "numa",        "system"});

std::size_t likelihood(const Difference& difference) {
  const auto named = [&](std::string_view field) { return difference.field.find(field) != std::string::npos; };
  return static_cast<std::size_t>(std::find_if(likely_fields.begin(), likely_fields.end(), named) - likely_fields.begin());
}

bool explains_nothing(const Difference& difference) {
  for (const std::string_view part : {"targets", "uuid", ".pci", ".ordinal", "hostname", "branch", "run-id", "artifacts-dir"})
    if (difference.field.find(part) != std::string::npos) return true;
  return false;
}

// The kinds of hardware that pairs of both runs used.
bool same_hardware(const RunRecord& before, const RunRecord& after) {
  std::map<std::string, std::string> keys;
  for (const PairResult& pair : before.pairs) keys[pair.target] = hardware_key(pair, before.manifest);
  for (const PairResult& pair : after.pairs) {
    const auto found = keys.find(pair.target);
    const std::string key = hardware_key(pair, after.manifest);
    if (found != keys.end() && !key.empty() && !found->second.empty() && found->second != key) return false;
    if (found != keys.end() && key == "host" && before.manifest.cpu != after.manifest.cpu) return false;
  }
  return true;
}

}  // namespace

std::vector<Difference> likely_causes(const Manifest& before, const Manifest& after) {
  std::vector<Difference> causes = differences(before, after);
  std::erase_if(causes, explains_nothing);
  std::stable_sort(causes.begin(), causes.end(),
                   [](const Difference& a, const Difference& b) { return likelihood(a) < likelihood(b); });
  return causes;
}

Comparison compare_runs(const RunRecord& before, const RunRecord& after, double threshold) {
  Comparison comparison{.before = before.folder.string(), .after = after.folder.string(), .run = {}};
  comparison.same_hardware = same_hardware(before, after);
  std::map<std::string, const PairResult*> later;
  for (const PairResult& pair : after.pairs) later.emplace(label_in_run(pair), &pair);
  for (const PairResult& pair : before.pairs) {
    const auto found = later.find(label_in_run(pair));
    if (found == later.end()) {
      comparison.only_before.push_back(label_in_run(pair));
      continue;
    }
    compare_pairs(pair, *found->second, threshold, comparison);
    later.erase(found);
  }
  for (const PairResult& pair : after.pairs)
    if (later.contains(label_in_run(pair))) comparison.only_after.push_back(label_in_run(pair));
  comparison.causes = likely_causes(before.manifest, after.manifest);
  return comparison;
}

Comparison compare_variants(const RunRecord& run, double threshold) {
  Comparison comparison{.before = "baseline", .after = "optimized", .run = run.folder.string()};
  for (const PairResult& pair : run.pairs) {
    if (pair.status != Status::passed || pair.variants.empty()) continue;
    const VariantResult& baseline = pair.variants.front();
    for (const VariantResult& variant : pair.variants)
      if (variant.role == VariantRole::optimized && variant.status == Status::passed)
        add_metrics(pair, baseline, variant, threshold, comparison.metrics);
  }
  return comparison;
}

}  // namespace aisp::evidence
