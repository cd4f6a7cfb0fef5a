// SPDX-License-Identifier: Apache-2.0
#include "evidence/recorded/sweep.hpp"

#include <algorithm>
#include <cmath>

#include "evidence/recorded/recorded_files.hpp"

namespace aisp::evidence {

namespace fs = std::filesystem;

static constexpr std::string_view sweep_records = "sweeps";

AISP_DESCRIBE(SweptVariant, name, role, median_ms, speedup, floor_ms, limiter, cost)

template <class Visitor>
void describe(SweptPoint& p, Visitor& visit) {
  AISP_VISIT(visit, p, sizes, variants);
  visit("case", p.name);
}

AISP_DESCRIBE(Sweep, schema_version, target, hardware, lesson, bound, source_digest, recorded, points)

namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

SweptVariant swept(const PairResult& pair, const VariantResult& variant) {
  SweptVariant result{.name = variant.name,
                      .role = variant.role,
                      .median_ms = variant.timing ? variant.timing->summary.median : 0,
                      .cost = variant.cost};
  const bool may_be_claimed = pair.status == Status::passed && variant.status == Status::passed && variant.speedup;
  if (may_be_claimed) result.speedup = variant.speedup->value;
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
    if (sweep.hardware.empty()) continue;
    sweep.recorded = recorded_of(pair, manifest);
    write_record(folder, sweep_records, sweep);
    targets.push_back(sweep.target);
  }
  return targets;
}

}  // namespace aisp::evidence
