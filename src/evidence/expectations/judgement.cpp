// SPDX-License-Identifier: Apache-2.0
#include "evidence/expectations/analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/text.hpp"

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

Range speedup_range(const Speedup& speedup) { return {speedup.value, speedup.low, speedup.high}; }
Range speedup_range(const ExpectedVariant& expected) { return {expected.speedup, expected.speedup_low, expected.speedup_high}; }

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
  const Range measured = speedup_range(*variant->speedup);
  // A speedup sampled too rarely to have an interval is no evidence.
  const Change change =
      has_interval(measured) ? change_of(speedup_range(wanted), measured, Direction::higher, threshold) : Change::same;
  // Launches are made by the host, and a busy one makes them late: a baseline of many moves where its variants do not.
  if (change != Change::same && m.pair->judged_by == time_metric &&
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
  const std::string runs = expected.recorded.runs == 1 ? ", once" : fmt::format(", {} times", expected.recorded.runs);
  return fmt::format("recorded {}{}{}", expected.recorded.date_utc.substr(0, 10), commit, runs);
}

// GPUs of one model differ, and the spread of runs on one of them does not say by how much.
std::string on_other_gpus(const ExpectedPair& expected, const PairResult& pair) {
  const std::set<std::string>& recorded = expected.recorded.gpu_ids;
  const std::vector<std::string> here = gpu_ids(pair);
  if (recorded.empty() || here.empty() ||
      std::any_of(here.begin(), here.end(), [&](const std::string& id) { return recorded.contains(id); }))
    return {};
  return recorded.size() == 1 ? " on another GPU of this model" : fmt::format(" on {} other GPUs of this model", recorded.size());
}

bool is_loss(Finding finding) { return finding == Finding::regressed || finding == Finding::slower; }

// One finding of several measurements, at least one: bad and good news alike must be in all of them.
Finding common_finding(const std::vector<Finding>& findings) {
  if (std::ranges::all_of(findings, [&](Finding each) { return each == findings.front(); })) return findings.front();
  return std::ranges::all_of(findings, [](Finding each) { return is_loss(each); }) ? Finding::slower : Finding::ok;
}

class ExpectationJudge {
 public:
  ExpectationJudge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold)
      : measurements_{measurements}, last_{measurements.back()}, threshold_{threshold} {
    if (expected != nullptr)
      recorded_ = applicable(*expected, last_.pair->source_digest, fingerprint_of(*last_.pair, last_.run->manifest),
                             gpu_ids(manifest_of(*last_.pair, last_.run->manifest)));
  }

  std::vector<AnalysisRow> rows() const {
    std::vector<AnalysisRow> rows;
    for (const VariantResult& variant : last_.pair->variants)
      if (variant.role == VariantRole::optimized) rows.push_back(row(variant));
    if (!recorded_ || mismatch()) return rows;
    for (const auto& [name, wanted] : recorded_->expected.variants) {
      if (wanted.role == VariantRole::control || find_variant(*last_.pair, name) != nullptr) continue;
      AnalysisRow missing = empty_row(name);
      missing.finding = Finding::missing;
      missing.expected = speedup_range(wanted);
      missing.detail = "an expected variant has no result";
      rows.push_back(std::move(missing));
    }
    return rows;
  }

 private:
  // Why the recorded runs are of something else than this measurement; nothing when they are of the same.
  struct Mismatch {
    Finding finding;
    std::string why;
  };
  std::optional<Mismatch> mismatch() const {
    if (!recorded_) return Mismatch{Finding::fresh, "nothing is recorded for this hardware"};
    if (last_.pair->judged_by != recorded_->expected.judged_by)
      return Mismatch{Finding::stale,
                      fmt::format("judged by {}, recorded by {}", last_.pair->judged_by, recorded_->expected.judged_by)};
    if (!recorded_->machine_differences.empty())
      return Mismatch{
          Finding::other_machine,
          fmt::format("the host decides such times, and they were recorded on another: {}; aisp run --update-expectations "
                      "records this one beside it",
                      base::join(recorded_->machine_differences, "; "))};
    if (!recorded_->same_code) return Mismatch{Finding::stale, "the code changed since it was recorded"};
    return std::nullopt;
  }

  AnalysisRow empty_row(const std::string& variant) const {
    AnalysisRow row;
    row.target = last_.pair->target;
    row.variant = variant;
    row.lesson = last_.pair->lesson == variant;
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
    if (!all_are_ratios(variant.name)) {
      row.finding = Finding::failed;
      row.detail = "its speedup is no number above 0 inside its interval";
      return row;
    }
    const bool known = recorded_ && recorded_->expected.variants.contains(variant.name);
    if (known) fill_expected(row);
    if (const auto other = mismatch()) {
      row.finding = other->finding;
      row.detail = other->why;
      tell_comparison(row);
    } else if (known) {
      decide(row);
    } else {
      row.finding = Finding::fresh;
      row.detail = "nothing is recorded for this variant";
    }
    return row;
  }

  bool all_are_ratios(const std::string& variant) const {
    return std::all_of(measurements_.begin(), measurements_.end(), [&](const Measurement& m) {
      const VariantResult* measured = find_variant(*m.pair, variant);
      return !is_timed(measured) || is_ratio(speedup_range(*measured->speedup));
    });
  }

  void fill_measured(const VariantResult& variant, AnalysisRow& row) const {
    if (variant.speedup) row.speedup = speedup_range(*variant.speedup);
    if (variant.timing) row.median_ms = variant.timing->summary.median;
    if (variant.floor) row.percent_of_floor = variant.floor->percent;
    row.gpu_busy_percent = gpu_busy_percent(variant);
    const VariantResult* baseline = baseline_of(*last_.pair);
    if (baseline != nullptr && baseline->timing) row.baseline_median_ms = baseline->timing->summary.median;
  }

  void fill_expected(AnalysisRow& row) const {
    const ExpectedVariant& wanted = recorded_->expected.variants.at(row.variant);
    row.expected = speedup_range(wanted);
    row.expected_median_ms = wanted.median_ms;
    row.expected_baseline_median_ms = recorded_->expected.baseline_median_ms;
  }

  // Sets the note of a row that is compared with other code. Another machine's figures say nothing.
  void tell_comparison(AnalysisRow& row) const {
    const bool by_other_code = row.finding == Finding::stale && last_.pair->judged_by == recorded_->expected.judged_by;
    if (!row.expected || !by_other_code) return;
    const double percent = change_percent(row.expected->value, row.speedup->value);
    AnalysisRow as_if = row;
    decide(as_if);
    row.would_be = as_if.finding;
    row.confirmed = as_if.confirmed;
    row.measurements = as_if.measurements;
    row.detail += fmt::format("; {:+.1f} % against it, which would be {}", percent, to_string(as_if.finding));
    if (!as_if.detail.empty()) row.detail += ": " + as_if.detail;
  }

  void decide(AnalysisRow& row) const {
    const ExpectedPair& expected = recorded_->expected;
    std::vector<Finding> findings;
    for (const Measurement& m : measurements_)
      if (is_timed(find_variant(*m.pair, row.variant))) findings.push_back(finding_of(m, row.variant, expected, threshold_));
    row.measurements = static_cast<int>(findings.size());
    row.finding = common_finding(findings);
    row.confirmed = row.finding == Finding::regressed && findings.size() >= 2;
    if (row.finding == Finding::ok) {
      const auto bad = std::ranges::count_if(findings, [](Finding each) { return is_loss(each) || each == Finding::drifted; });
      if (bad > 0) row.detail = fmt::format("below in {} of {} measurements, not confirmed", bad, findings.size());
      return;
    }
    row.detail = fmt::format("{}; {}{}", cause(row), since(expected), on_other_gpus(expected, *last_.pair));
    const std::vector<std::string> others =
        gpu_differences(expected.runs.back().fingerprint, fingerprint_of(*last_.pair, last_.run->manifest));
    if (!others.empty()) row.detail += fmt::format(" with {}", base::join(others, ", "));
    if (row.finding == Finding::regressed && !row.confirmed) row.detail += "; unconfirmed, measured once";
    if (row.finding == Finding::drifted) row.detail += "; the ratio held";
  }

  const std::vector<Measurement>& measurements_;
  const Measurement& last_;
  std::optional<Applicable> recorded_;
  double threshold_;
};

}  // namespace

std::vector<AnalysisRow> judge(const std::vector<Measurement>& measurements, const ExpectedPair* expected, double threshold) {
  return ExpectationJudge{measurements, expected, threshold}.rows();
}

}  // namespace aisp::evidence
