// SPDX-License-Identifier: Apache-2.0
#include "evidence/judgement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace aisp::evidence {
namespace {

const VariantResult* find_variant(const PairResult& pair, const std::string& name) {
  for (const VariantResult& variant : pair.variants)
    if (variant.name == name) return &variant;
  return nullptr;
}

const VariantResult* baseline_of(const PairResult& pair) {
  for (const VariantResult& variant : pair.variants)
    if (variant.role == VariantRole::baseline) return &variant;
  return nullptr;
}

bool is_timed(const VariantResult* variant) {
  return variant != nullptr && variant->status == Status::passed && variant->timing && variant->speedup;
}

// Why the expectation says nothing about this measurement although it is of the same pair; empty when it does.
struct Mismatch {
  Finding finding = Finding::ok;
  std::string why;
};
Mismatch mismatch(const Measurement& m, const ExpectedPair* expected) {
  if (expected == nullptr) return {Finding::fresh, "nothing is recorded for this hardware"};
  if (m.pair->source_digest != expected->source_digest) return {Finding::stale, "the code changed since it was recorded"};
  if (m.pair->judged_by != expected->judged_by)
    return {Finding::stale, fmt::format("judged by {}, recorded by {}", m.pair->judged_by, expected->judged_by)};
  if (m.pair->device == "host") {
    if (m.run->manifest.cpu != expected->recorded.cpu)
      return {Finding::fresh, fmt::format("recorded on another CPU, {}", expected->recorded.cpu)};
    return {};
  }
  for (const ManifestGpu& gpu : m.run->manifest.gpus)
    if (!m.pair->gpus.empty() && gpu.uuid == m.pair->gpus.front() && gpu.name != expected->recorded.gpu)
      return {Finding::fresh, fmt::format("recorded on another GPU, {}", expected->recorded.gpu)};
  return {};
}

Range range_of(const Speedup& speedup) { return {speedup.value, speedup.low, speedup.high}; }
Range range_of(const ExpectedVariant& expected) { return {expected.speedup, expected.speedup_low, expected.speedup_high}; }

// Only where the whole interval is beyond the threshold: expectations hold no interval of absolute times.
bool surely_longer(const VariantResult* variant, double expected_ms, double threshold) {
  if (variant == nullptr || !(expected_ms > 0)) return false;
  const auto range = time_range(*variant);
  return range && range->low > expected_ms * (1 + threshold);
}

// The variant takes as long as expected, and the baseline's time is as different as the ratio is.
bool only_baseline_moved(const PairResult& pair, const VariantResult& variant, const ExpectedVariant& wanted,
                         double expected_baseline_ms) {
  const VariantResult* baseline = baseline_of(pair);
  const auto own = time_range(variant);
  if (!own || baseline == nullptr || !baseline->timing || !(wanted.median_ms > 0) || !(expected_baseline_ms > 0)) return false;
  const bool same_time =
      own->low <= wanted.median_ms * (1 + smallest_change) && own->high * (1 + smallest_change) >= wanted.median_ms;
  const double of_baseline = baseline->timing->summary.median / expected_baseline_ms;
  const double of_ratio = variant.speedup->value / wanted.speedup;
  return same_time && std::abs(std::log(of_ratio / of_baseline)) <= 2 * smallest_change;
}

Finding finding_of(const Measurement& m, const std::string& name, const ExpectedPair& expected, double threshold) {
  const VariantResult* variant = find_variant(*m.pair, name);
  const ExpectedVariant& wanted = expected.variants.at(name);
  const Change change = change_of(range_of(wanted), range_of(*variant->speedup), Direction::higher, threshold);
  // Launches are made by the host, and a busy one makes them late: a baseline of many moves where its variants do not.
  if (change != Change::same && m.pair->judged_by == "time" &&
      only_baseline_moved(*m.pair, *variant, wanted, expected.baseline_median_ms))
    return Finding::rebased;
  switch (change) {
    case Change::worse: return Finding::regressed;
    case Change::slightly_worse: return Finding::slower;
    case Change::better: return Finding::improved;
    default: break;
  }
  const bool longer = surely_longer(variant, wanted.median_ms, threshold) &&
                      surely_longer(baseline_of(*m.pair), expected.baseline_median_ms, threshold);
  return longer ? Finding::drifted : Finding::ok;
}

// Which side of the ratio moved, in words.
std::string cause(const AnalysisRow& row) {
  if (!row.median_ms || !row.expected_median_ms || !row.baseline_median_ms || !row.expected_baseline_median_ms) return {};
  const double own = change_percent(*row.expected_median_ms, *row.median_ms);
  const double baseline = change_percent(*row.expected_baseline_median_ms, *row.baseline_median_ms);
  if (!std::isfinite(own) || !std::isfinite(baseline)) return {};
  return fmt::format("its time changed by {:+.1f} %, the baseline's by {:+.1f} %", own, baseline);
}

std::string since(const ExpectedPair& expected) {
  const std::string commit = expected.recorded.commit.empty() ? "" : " of " + expected.recorded.commit.substr(0, 12);
  return fmt::format("recorded {}{}", expected.recorded.date_utc.substr(0, 10), commit);
}

// One finding of several measurements: bad and good news alike must be in all of them.
struct Verdicts {
  int regressed = 0, slower = 0, drifted = 0, rebased = 0, improved = 0, all = 0;

  void count(Finding finding) {
    ++all;
    regressed += finding == Finding::regressed;
    slower += finding == Finding::slower;
    drifted += finding == Finding::drifted;
    rebased += finding == Finding::rebased;
    improved += finding == Finding::improved;
  }
  Finding together() const {
    if (regressed == all) return Finding::regressed;
    if (regressed + slower == all) return Finding::slower;
    if (drifted == all) return Finding::drifted;
    if (rebased == all) return Finding::rebased;
    return improved == all ? Finding::improved : Finding::ok;
  }
};

class Judge {
 public:
  Judge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold)
      : measurements_{measurements}, last_{measurements.back()}, expected_{expected}, threshold_{threshold} {}

  std::vector<AnalysisRow> rows() const {
    std::vector<AnalysisRow> rows;
    for (const VariantResult& variant : last_.pair->variants)
      if (variant.role == VariantRole::optimized) rows.push_back(row(variant));
    if (expected_ == nullptr || mismatch(last_, expected_).finding != Finding::ok) return rows;
    for (const auto& [name, wanted] : expected_->variants) {
      if (find_variant(*last_.pair, name) != nullptr) continue;
      AnalysisRow missing = empty_row(name);
      missing.finding = Finding::missing;
      missing.expected = range_of(wanted);
      missing.detail = "an expected variant has no result";
      rows.push_back(std::move(missing));
    }
    return rows;
  }

 private:
  AnalysisRow empty_row(const std::string& variant) const {
    AnalysisRow row;
    row.target = last_.pair->target;
    row.variant = variant;
    row.best = last_.pair->best == variant;
    row.measurements = static_cast<int>(measurements_.size());
    row.run_id = last_.run->manifest.run_id;
    return row;
  }

  AnalysisRow row(const VariantResult& variant) const {
    AnalysisRow row = empty_row(variant.name);
    fill_measured(variant, row);
    if (!is_timed(&variant)) {
      row.finding = variant.status == Status::failed ? Finding::failed : Finding::skipped;
      row.detail = variant.reason.empty() ? "not timed" : variant.reason;
      return row;
    }
    const bool known = expected_ != nullptr && expected_->variants.contains(variant.name);
    if (known) fill_expected(row);
    if (const Mismatch other = mismatch(last_, expected_); other.finding != Finding::ok) {
      row.finding = other.finding;
      row.detail = other.why;
      // What nobody can fail is still worth telling.
      if (row.expected)
        row.detail += fmt::format("; {:+.1f} % against it", change_percent(row.expected->value, row.speedup->value));
      return row;
    }
    if (!known) {
      row.finding = Finding::fresh;
      row.detail = "nothing is recorded for this variant";
      return row;
    }
    decide(row);
    return row;
  }

  void fill_measured(const VariantResult& variant, AnalysisRow& row) const {
    if (variant.speedup) row.speedup = range_of(*variant.speedup);
    if (variant.timing) row.median_ms = variant.timing->summary.median;
    if (variant.floor) row.percent_of_floor = variant.floor->percent;
    row.goodput_percent = goodput_percent(variant);
    const VariantResult* baseline = baseline_of(*last_.pair);
    if (baseline != nullptr && baseline->timing) row.baseline_median_ms = baseline->timing->summary.median;
  }

  void fill_expected(AnalysisRow& row) const {
    const ExpectedVariant& wanted = expected_->variants.at(row.variant);
    row.expected = range_of(wanted);
    row.expected_median_ms = wanted.median_ms;
    row.expected_baseline_median_ms = expected_->baseline_median_ms;
  }

  void decide(AnalysisRow& row) const {
    Verdicts verdicts;
    for (const Measurement& m : measurements_)
      if (is_timed(find_variant(*m.pair, row.variant))) verdicts.count(finding_of(m, row.variant, *expected_, threshold_));
    row.measurements = verdicts.all;
    row.finding = verdicts.together();
    row.confirmed = row.finding == Finding::regressed && verdicts.all >= 2;
    const int bad = verdicts.regressed + verdicts.slower + verdicts.drifted;
    if (row.finding == Finding::ok) {
      if (bad > 0) row.detail = fmt::format("below in {} of {} measurements, not confirmed", bad, verdicts.all);
      return;
    }
    row.detail = fmt::format("{}; {}", cause(row), since(*expected_));
    if (row.finding == Finding::regressed && !row.confirmed) row.detail += "; unconfirmed, measured once";
    if (row.finding == Finding::drifted) row.detail += "; the ratio held";
  }

  const std::vector<Measurement>& measurements_;
  const Measurement& last_;
  const ExpectedPair* expected_;
  double threshold_;
};

}  // namespace

std::vector<AnalysisRow> judge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold) {
  return Judge{measurements, expected, threshold}.rows();
}

}  // namespace aisp::evidence
