// SPDX-License-Identifier: Apache-2.0
#include "evidence/comparison/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "base/math/statistics.hpp"
#include "evidence/expectations/fingerprint.hpp"
#include "evidence/profile/counter_table.hpp"
#include "evidence/quantities.hpp"

namespace aisp::evidence {
namespace {

// Clocks jitter by less than this between two equal runs under a power cap.
constexpr double telling_clock_change = 0.02;

struct ComparedFigure {
  std::string name, unit;
  Direction better = Direction::lower;
  Range range;
  bool sampled = false;                      // the range is an interval; else it is a single reading
  const std::vector<double>* raw = nullptr;  // the samples behind it
};

Range exact_range(double value) { return {value, value, value}; }

void add_reading(std::string_view name, std::string_view unit, Direction better, const std::optional<double>& value,
                 std::vector<ComparedFigure>& figures) {
  if (value) figures.push_back({std::string{name}, std::string{unit}, better, exact_range(*value)});
}

std::string_view unit_of(CounterKind kind) {
  switch (kind) {
    case CounterKind::microseconds: return "us";
    case CounterKind::percent: return "%";
    case CounterKind::bytes: return bytes_unit;
    case CounterKind::count:
    case CounterKind::ratio: return "";
  }
  return "";
}

// Adds the counters of one execution, by their field names in files.
void add_counters(const Counters& counters, std::vector<ComparedFigure>& figures) {
  for (const CounterRow& row : counter_rows)
    if (row.better) add_reading("counters." + std::string{row.id}, unit_of(row.kind), *row.better, counters.*row.value, figures);
}

// Adds the figures of one recorded execution; for a host pair those that the system counted.
void add_profile(const Profile& profile, std::vector<ComparedFigure>& figures) {
  const auto add = [&](std::string_view name, std::string_view unit, auto value) {
    add_reading(name, unit, Direction::lower, static_cast<double>(value), figures);
  };
  if (const std::optional<HostProfile>& host = profile.host) {
    add("profile.user_ms", milliseconds_unit, host->user_ms);
    add("profile.system_ms", milliseconds_unit, host->system_ms);
    add("profile.context_switches", "", host->voluntary_switches + host->involuntary_switches);
    add("profile.page_faults", "", host->minor_faults + host->major_faults);
    return;
  }
  add("profile.kernel_ms", milliseconds_unit, profile.kernel_ms);
  add("profile.copy_ms", milliseconds_unit, profile.copy_ms);
  add("profile.launches", "", profile.launches);
  std::size_t waits = 0;
  for (const CallProfile& kind : profile.synchronizations) waits += kind.count;
  add("profile.waits", "", waits);
}

// Returns all figures of a variant, in the order of the table.
std::vector<ComparedFigure> figures_of(const PairResult& pair, const VariantResult& variant) {
  std::vector<ComparedFigure> figures;
  for (const Quantity& quantity : quantities()) {
    const Quantity::Compared& how = quantity.compared;
    if (how.name.empty()) continue;
    const std::optional<Range> range = how.get != nullptr ? how.get(variant) : quantity.get(pair, variant);
    if (!range) continue;
    figures.push_back({std::string{how.name}, std::string{how.unit}, how.better, *range,
                       how.sampled != nullptr && how.sampled(variant), how.raw != nullptr ? &how.raw(variant) : nullptr});
  }
  for (const Metric& metric : variant.metrics) {
    figures.push_back({metric.name, metric.unit, metric.better,
                       metric.raw.empty() ? exact_range(metric.summary.median) : median_range(metric.raw),
                       metric.raw.size() >= fewest_samples, &metric.raw});
  }
  if (variant.profile) add_profile(*variant.profile, figures);
  if (variant.counters) add_counters(*variant.counters, figures);
  return figures;
}

std::string clock_detail(const PairResult& before, const PairResult& after) {
  const auto first = median_sm_clock_mhz(before.gpu_states), second = median_sm_clock_mhz(after.gpu_states);
  if (!first || !second || std::abs(*second / *first - 1) < telling_clock_change) return {};
  return fmt::format("median SM clock {:.0f} MHz, then {:.0f} MHz", *first, *second);
}

// How a pair of the two runs can be compared.
struct Terms {
  double threshold = 0;
  bool one_process = false;  // for both
  bool one_machine = true;
  // One process each says nothing of how processes differ, which for launches and threads may be twofold.
  bool host_decides = false;
};

std::string detail_of(Change change, bool sampled, const Terms& terms) {
  if (change == Change::same) return {};
  if (!sampled) return "single readings";
  if (!terms.one_machine) return "other machine";
  return terms.host_decides ? "the host decides" : "";
}

// Compares single readings, which have no interval; a change within the threshold is none.
Change change_of_readings(const ComparedFigure& before, const ComparedFigure& after, double threshold) {
  const Change change = change_of(before.range, after.range, before.better, 0);
  const double ratio = after.range.value / before.range.value;
  return ratio < 1 + threshold && ratio * (1 + threshold) > 1 ? Change::same : change;
}

// Judges by the samples' intervals; a change that is no larger than processes of equal code differ by is reported as slight.
Change change_of_samples(const ComparedFigure& before, const ComparedFigure& after, const Terms& terms) {
  const Change by_intervals = change_of(before.range, after.range, before.better, terms.threshold);
  if (terms.one_process) return by_intervals;
  const ProcessSpread& of_gpu = before.name == speedup_metric ? process_spread_of_gpu : process_spread_of_absolutes;
  const Range expected = expected_of_runs({&before.range, 1}, terms.host_decides ? process_spread_of_host : of_gpu);
  const Change change = change_of(expected, after.range, before.better, terms.threshold);
  if (change != Change::same) return change;
  if (is_loss(by_intervals)) return Change::slightly_worse;
  return is_gain(by_intervals) ? Change::slightly_better : Change::same;
}

std::vector<double> raw_of(const ComparedFigure& figure) { return figure.raw == nullptr ? std::vector<double>{} : *figure.raw; }

void add_metrics(const PairResult& pair, const VariantResult& before, const VariantResult& after, const Terms& terms,
                 std::vector<MetricChange>& changes) {
  const std::vector<ComparedFigure> later = figures_of(pair, after);
  for (const ComparedFigure& figure : figures_of(pair, before)) {
    const auto same_name = [&](const ComparedFigure& other) { return other.name == figure.name && other.unit == figure.unit; };
    const auto found = std::find_if(later.begin(), later.end(), same_name);
    if (found == later.end()) continue;
    const bool sampled = figure.sampled && found->sampled;
    const Change change =
        sampled ? change_of_samples(figure, *found, terms) : change_of_readings(figure, *found, terms.threshold);
    changes.push_back({.target = label_in_run(pair),
                       .variant = after.name,
                       .metric = figure.name,
                       .unit = figure.unit,
                       .better = figure.better,
                       .before = figure.range,
                       .after = found->range,
                       .change_percent = change_percent(figure.range.value, found->range.value),
                       .change = change,
                       .is_regression = sampled && terms.one_machine && !terms.host_decides && change == Change::worse,
                       .detail = detail_of(change, sampled, terms),
                       .before_raw = raw_of(figure),
                       .after_raw = raw_of(*found)});
  }
}

// The chance that a speedup of equal code comes out so much smaller in another process.
struct Chance {
  std::size_t row = 0;
  double chance = 1;
};

// The standard deviation between processes of quiet pairs, and the number of recorded runs that this knowledge counts as. One
// recorded run tells nothing.
constexpr double usual_spread = 0.004, usual_degrees = 8;
constexpr std::size_t fewest_recorded = 2;

void add_chances(const PairResult& pair, const ExpectedPair* recorded, std::size_t first,
                 const std::vector<MetricChange>& metrics, std::vector<Chance>& chances) {
  if (recorded == nullptr) return;
  const auto within = [](const Range& range) { return std::pow(std::log(range.high / range.low) / 3.92, 2); };
  for (std::size_t row = first; row < metrics.size(); ++row) {
    const MetricChange& metric = metrics[row];
    if (metric.metric != speedup_metric || !is_ratio(metric.before) || !is_ratio(metric.after)) continue;
    std::vector<double> logs;
    for (const RecordedRun& run : recorded->runs)
      if (const auto found = run.variants.find(metric.variant);
          run.source_digest == pair.source_digest && found != run.variants.end())
        logs.push_back(std::log(found->second.speedup));
    if (logs.size() < fewest_recorded) continue;
    const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size());
    double squares = usual_degrees * usual_spread * usual_spread;
    for (const double value : logs) squares += std::pow(value - mean, 2);
    const double degrees = usual_degrees + static_cast<double>(logs.size() - 1);
    const double deviation = std::sqrt(2 * squares / degrees + within(metric.before) + within(metric.after));
    chances.push_back({row, base::beyond_student_t(std::log(metric.before.value / metric.after.value) / deviation, degrees)});
  }
}

void forgive_luck(const std::vector<Chance>& chances, std::vector<MetricChange>& metrics) {
  constexpr double rate = 0.1;
  std::vector<double> values;
  for (const Chance& each : chances) values.push_back(each.chance);
  const std::vector<bool> beyond = base::beyond_luck(values, rate);
  for (std::size_t i = 0; i < chances.size(); ++i) {
    MetricChange& metric = metrics[chances[i].row];
    if (beyond[i] || metric.change != Change::worse) continue;
    metric.change = Change::slightly_worse;
    metric.is_regression = false;
    metric.detail = "recorded runs differ by as much";
  }
}

bool is_repeatable(const VariantResult& variant) { return variant.accuracy && variant.accuracy->bitwise_repeatable; }

void add_outputs(const PairResult& pair, const VariantResult& before, const VariantResult& after, RunComparison& comparison) {
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

// Notes that the two ran at other sizes, which leaves nothing to compare. A pair that declared no sizes yet ran at its full ones,
// which are not known here: what was set is something else.
bool differ_in_size(const PairResult& before, const PairResult& after, RunComparison& comparison) {
  const bool both_known = !before.sizes.empty() && !after.sizes.empty();
  if (before.sizes == after.sizes || !(both_known || before.sizes_set || after.sizes_set)) return false;
  const auto text = [](const PairResult& pair) { return pair.sizes.empty() ? "not known" : sizes_text(pair); };
  comparison.sizes.push_back({label_in_run(before), text(before), text(after)});
  return true;
}

void compare_pairs(const PairResult& before, const PairResult& after, const Terms& terms, RunComparison& comparison) {
  if (before.source_digest != after.source_digest) comparison.source_changed.push_back(label_in_run(before));
  if (before.status != after.status)
    comparison.statuses.push_back({label_in_run(before), before.status, after.status, after.reason});
  if (before.status != Status::passed || after.status != Status::passed) return;
  if (differ_in_size(before, after, comparison)) return;
  const std::string clocks = clock_detail(before, after);
  const std::size_t first = comparison.metrics.size();
  const bool same_inputs = before.seed == after.seed && before.scale == after.scale;
  for (const VariantResult& variant : before.variants) {
    const VariantResult* later = passed_variant(after, variant.name);
    if (variant.status != Status::passed || later == nullptr) continue;
    add_metrics(before, variant, *later, terms, comparison.metrics);
    if (same_inputs) add_outputs(before, variant, *later, comparison);
  }
  for (std::size_t i = first; i < comparison.metrics.size(); ++i) {
    MetricChange& metric = comparison.metrics[i];
    if (metric.metric == time_metric && metric.change != Change::same && !clocks.empty())
      metric.detail += (metric.detail.empty() ? "" : "; ") + clocks;
  }
}

// How likely a field of the manifest explains a change; the order of the list is the order of the table.
constexpr auto likely_fields = std::to_array<std::string_view>(
    {"gpus",         "driver_version", "power_limit_w",  "sm_clock_max_mhz", "commit",      "dirty", "cuda",
     "aisp_version", "build_type",     "compilers",      "configuration",    "environment", "cpu",   "libraries",
     "kernel",       "container",      "virtualization", "memory_bytes",     "numa",        "system"});

std::size_t likelihood(const ManifestDifference& difference) {
  const auto named = [&](std::string_view field) { return difference.field.find(field) != std::string::npos; };
  return static_cast<std::size_t>(std::find_if(likely_fields.begin(), likely_fields.end(), named) - likely_fields.begin());
}

bool explains_nothing(const ManifestDifference& difference) {
  for (const std::string_view part : {"targets", "uuid", ".pci", ".ordinal", "hostname", "branch", "run-id", "artifacts-dir"})
    if (difference.field.find(part) != std::string::npos) return true;
  return false;
}

// Returns how the hosts differ, whatever the pairs used of them. Runs without a record of their host count as of one host.
std::vector<std::string> host_changes(const Manifest& before, const Manifest& after) {
  const Fingerprint host_before = fingerprint_of({.device = Device::host}, before),
                    host_after = fingerprint_of({.device = Device::host}, after);
  if (host_before != host_after) return host_differences(host_before, host_after);
  if (auto other = other_host(host_after, gpu_ids(after), gpu_ids(before))) return {std::move(*other)};
  return {};
}

Terms terms_of(const PairResult& before, const PairResult& after, const std::pair<std::string, std::string>& hardware,
               bool one_host, double threshold) {
  const bool host_decides = before.host_dependent || after.host_dependent;
  const bool one_kind = hardware.first.empty() || hardware.second.empty() || hardware.first == hardware.second;
  return {.threshold = threshold, .one_machine = one_kind && (!host_decides || one_host), .host_decides = host_decides};
}

}  // namespace

bool broke_something(const RunComparison& comparison) {
  return std::ranges::any_of(comparison.statuses, [](const StatusChange& status) {
    return status.before == Status::passed && status.after != Status::skipped;
  });
}

std::vector<ManifestDifference> likely_causes(const Manifest& before, const Manifest& after) {
  std::vector<ManifestDifference> causes = differences(before, after);
  std::erase_if(causes, explains_nothing);
  std::stable_sort(causes.begin(), causes.end(),
                   [](const ManifestDifference& a, const ManifestDifference& b) { return likelihood(a) < likelihood(b); });
  return causes;
}

Overall overall(const RunComparison& comparison) {
  Overall result;
  std::set<std::string> pairs;
  double logarithms = 0;
  for (const MetricChange& metric : comparison.metrics) {
    if (metric.metric != time_metric || !(metric.before.value > 0) || !(metric.after.value > 0)) continue;
    const double ratio = metric.before.value / metric.after.value;
    const std::string name = metric.target + " " + metric.variant;
    if (result.kernels == 0 || ratio < result.least) {
      result.least = ratio;
      result.least_of = name;
    }
    if (result.kernels == 0 || ratio > result.most) {
      result.most = ratio;
      result.most_of = name;
    }
    logarithms += std::log(ratio);
    pairs.insert(metric.target);
    ++result.kernels;
  }
  result.pairs = pairs.size();
  if (result.kernels > 0) result.geometric_mean = std::exp(logarithms / static_cast<double>(result.kernels));
  return result;
}

RunComparison compare_runs(const RunRecord& before, const RunRecord& after, double threshold, ExpectationFolder* recordings) {
  std::vector<Chance> chances;
  RunComparison comparison{.threshold = threshold, .before = before.folder.string(), .after = after.folder.string(), .run = {}};
  // Each pair of a merged run has a machine of its own.
  const auto changes = [&](const Manifest& one, const Manifest& other) {
    const std::vector<std::string> found = host_changes(one, other);
    for (const std::string& change : found)
      if (std::ranges::find(comparison.machine_differences, change) == comparison.machine_differences.end())
        comparison.machine_differences.push_back(change);
    return found;
  };
  if (before.manifest.machines.empty() && after.manifest.machines.empty()) changes(before.manifest, after.manifest);
  std::map<std::string, const PairResult*> later;
  for (const PairResult& pair : after.pairs) later.emplace(label_in_run(pair), &pair);
  for (const PairResult& pair : before.pairs) {
    const auto found = later.find(label_in_run(pair));
    if (found == later.end()) {
      comparison.only_before.push_back(label_in_run(pair));
      continue;
    }
    const std::pair hardware{hardware_key(pair, before.manifest), hardware_key(*found->second, after.manifest)};
    const bool one_host = changes(manifest_of(pair, before.manifest), manifest_of(*found->second, after.manifest)).empty();
    const Terms terms = terms_of(pair, *found->second, hardware, one_host, threshold);
    comparison.same_hardware =
        comparison.same_hardware && (hardware.first.empty() || hardware.second.empty() || hardware.first == hardware.second);
    const std::size_t first = comparison.metrics.size();
    compare_pairs(pair, *found->second, terms, comparison);
    if (recordings != nullptr && terms.one_machine && !terms.host_decides)
      add_chances(pair, recordings->find(hardware.first, pair.chapter, pair.name), first, comparison.metrics, chances);
    later.erase(found);
  }
  for (const PairResult& pair : after.pairs)
    if (later.contains(label_in_run(pair))) comparison.only_after.push_back(label_in_run(pair));
  forgive_luck(chances, comparison.metrics);
  comparison.causes = likely_causes(before.manifest, after.manifest);
  return comparison;
}

RunComparison compare_variants(const RunRecord& run, double threshold) {
  RunComparison comparison{.threshold = threshold, .before = "baseline", .after = "optimized", .run = run.folder.string()};
  for (const PairResult& pair : run.pairs) {
    if (pair.status != Status::passed || pair.variants.empty()) continue;
    const VariantResult& baseline = pair.variants.front();
    // In one process, timed in turn.
    const Terms terms{.threshold = threshold, .one_process = true};
    for (const VariantResult& variant : pair.variants)
      if (variant.role == VariantRole::optimized && variant.status == Status::passed)
        add_metrics(pair, baseline, variant, terms, comparison.metrics);
  }
  return comparison;
}

}  // namespace aisp::evidence
