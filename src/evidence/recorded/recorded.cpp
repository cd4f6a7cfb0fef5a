// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/recorded.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/system/files.hpp"
#include "evidence/fields.hpp"
#include "evidence/json.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

AISP_DESCRIBE(Recorded, date_utc, run_id, aisp_version, commit, gpu, driver, cuda, cpu, power_limit_w)
AISP_DESCRIBE(SweptVariant, name, role, median_ms, speedup, floor_ms, limiter, cost)

template <class Visitor>
void describe(SweptPoint& p, Visitor& visit) {
  AISP_VISIT(visit, p, sizes, variants);
  visit("case", p.name);
}

AISP_DESCRIBE(Sweep, schema_version, target, hardware, lesson, bound, source_digest, recorded, points)
AISP_DESCRIBE(CountedVariant, name, role, counters)
AISP_DESCRIBE(Counted, schema_version, target, hardware, lesson, source_digest, recorded, variants)

namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

SweptVariant swept(const PairResult& pair, const VariantResult& variant) {
  SweptVariant result{.name = variant.name,
                      .role = variant.role,
                      .median_ms = variant.timing ? variant.timing->summary.median : 0,
                      .cost = variant.cost};
  if (const Speedup* const speedup = claimable(pair, variant)) result.speedup = speedup->value;
  if (variant.floor && is_positive(variant.floor->milliseconds)) {
    result.floor_ms = variant.floor->milliseconds;
    result.limiter = variant.floor->limiter;
  }
  return result;
}

SweptPoint swept(const PairResult& pair) {
  SweptPoint point{.name = pair.sweep_case, .sizes = pair.sizes, .variants = {}};
  if (pair.status == Status::passed)
    for (const VariantResult& variant : pair.variants) point.variants.push_back(swept(pair, variant));
  return point;
}

// Writes <folder>/<hardware>/<kind>/<chapter>_<name>.json, in whole or not at all, and adds the target to `targets`; throws
// base::Error (Exit::unfit).
template <class Record>
void write_record(const fs::path& folder, std::string_view kind, const PairResult& pair, const Manifest& manifest, Record& record,
                  std::vector<std::string>& targets) {
  record.recorded = expected_of(pair, manifest, nullptr).recorded;
  std::string name = record.target + ".json";
  std::ranges::replace(name, ':', '_');
  const fs::path file = folder / record.hardware / kind / name;
  base::make_directories(file.parent_path());
  base::write_atomically(file, json_text(base::json_of(record), 2) + '\n');
  targets.push_back(record.target);
}

}  // namespace

std::vector<Sweep> sweeps_of(const std::vector<PairResult>& pairs) {
  std::vector<Sweep> sweeps;
  for (const PairResult& pair : pairs) {
    if (pair.sweep_case.empty()) continue;
    auto found = std::ranges::find(sweeps, pair.target, &Sweep::target);
    if (found == sweeps.end())
      found = sweeps.insert(sweeps.end(), Sweep{.target = pair.target, .bound = pair.bound, .source_digest = pair.source_digest});
    if (found->lesson.empty()) found->lesson = pair.lesson;
    found->points.push_back(swept(pair));
  }
  return sweeps;
}

std::vector<std::string> record_sweeps(const fs::path& folder, const SuiteResult& suite, const Manifest& manifest) {
  std::vector<std::string> targets;
  for (Sweep& sweep : sweeps_of(suite.pairs)) {
    if (std::ranges::any_of(sweep.points, [](const SweptPoint& point) { return point.variants.empty(); })) continue;
    const PairResult& pair = *std::ranges::find_if(
        suite.pairs, [&](const PairResult& each) { return each.target == sweep.target && !each.sweep_case.empty(); });
    sweep.hardware = hardware_key(pair, manifest);
    if (!sweep.hardware.empty()) write_record(folder, "sweeps", pair, manifest, sweep, targets);
  }
  return targets;
}

std::vector<std::string> record_counters(const fs::path& folder, const SuiteResult& suite, const Manifest& manifest) {
  std::vector<std::string> targets;
  for (const PairResult& pair : suite.pairs) {
    if (not_recordable(pair)) continue;
    Counted counted{.target = pair.target,
                    .lesson = pair.lesson,
                    .hardware = hardware_key(pair, manifest),
                    .source_digest = pair.source_digest};
    for (const VariantResult& variant : pair.variants) {
      if (!variant.counters) continue;
      counted.variants.push_back({variant.name, variant.role, *variant.counters});
      counted.variants.back().counters.report.clear();  // it stays in the run's folder
    }
    if (!counted.variants.empty() && !counted.hardware.empty())
      write_record(folder, "counters", pair, manifest, counted, targets);
  }
  return targets;
}

}  // namespace aisp::evidence
