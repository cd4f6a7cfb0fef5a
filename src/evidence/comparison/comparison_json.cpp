// SPDX-License-Identifier: Apache-2.0
// Rows of an analysis, comparisons and histories as JSON.
#include "evidence/comparison/comparison.hpp"
#include "evidence/comparison/history.hpp"
#include "evidence/fields.hpp"

namespace aisp::evidence {

template <class Visitor>
void describe(ManifestDifference& d, Visitor& visit) {
  visit("field", d.field, "before", d.before, "after", d.after);
}

template <class Visitor>
void describe(MetricChange& m, Visitor& visit) {
  visit("target", m.target, "variant", m.variant, "metric", m.metric, "unit", m.unit, "better", m.better);
  visit("before", m.before, "after", m.after, "change_percent", m.change_percent, "change", m.change);
  visit("is_regression", m.is_regression, "detail", m.detail);
  visit("before_raw", m.before_raw, "after_raw", m.after_raw);
}

template <class Visitor>
void describe(StatusChange& s, Visitor& visit) {
  visit("target", s.target, "before", s.before, "after", s.after, "reason", s.reason);
}

template <class Visitor>
void describe(SizeChange& s, Visitor& visit) {
  visit("target", s.target, "before", s.before, "after", s.after);
}

template <class Visitor>
void describe(OutputChange& o, Visitor& visit) {
  visit("target", o.target, "variant", o.variant, "output", o.output, "bitwise_repeatable", o.repeatable);
}

template <class Visitor>
void describe(Overall& o, Visitor& visit) {
  visit("kernels", o.kernels, "pairs", o.pairs, "geometric_mean", o.geometric_mean);
  visit("least", o.least, "least_of", o.least_of, "most", o.most, "most_of", o.most_of);
}

template <class Visitor>
void describe(RunComparison& c, Visitor& visit) {
  visit("before", c.before, "after", c.after, "run", c.run, "same_hardware", c.same_hardware);
  visit("machine_differences", c.machine_differences, "metrics", c.metrics, "statuses", c.statuses);
  visit("sizes_changed", c.sizes, "outputs_changed", c.outputs, "outputs_equal", c.equal_outputs);
  visit("only_before", c.only_before, "only_after", c.only_after, "source_changed", c.source_changed, "causes", c.causes);
}

template <class Visitor>
void describe(SeriesStep& s, Visitor& visit) {
  visit("run_id", s.run_id, "before", s.before, "after", s.after, "p_value", s.p_value);
  visit("source_changed", s.source_changed, "causes", s.causes);
}

template <class Visitor>
void describe(Series& s, Visitor& visit) {
  visit("target", s.target, "variant", s.variant, "hardware", s.hardware, "machine", s.machine, "quantity", s.quantity);
  visit("days", s.days, "steps", s.steps, "recent", s.recent);
}

template <class Visitor>
void describe(AnalysisRow& r, Visitor& visit) {
  visit("target", r.target, "variant", r.variant, "lesson", r.lesson, "best", r.best, "hardware", r.hardware);
  visit("machine", r.machine, "finding", r.finding, "confirmed", r.confirmed, "measurements", r.measurements);
  visit("counts_as_regression", r.counts_as_regression, "lost_coverage", r.lost_coverage, "run_id", r.run_id);
  visit("detail", r.detail, "speedup", r.speedup, "expected", r.expected, "median_ms", r.median_ms);
  visit("expected_median_ms", r.expected_median_ms, "baseline_median_ms", r.baseline_median_ms);
  visit("expected_baseline_median_ms", r.expected_baseline_median_ms, "floor_percent", r.percent_of_floor);
  visit("gpu_busy_percent", r.gpu_busy_percent);
}

void to_json(json& to, const RunComparison& comparison) {
  to = base::json_of(comparison);
  to["schema_version"] = schema_version;
  to["threshold_percent"] = comparison.threshold * 100;
  const Overall all = overall(comparison);
  to["overall"] = all.kernels > 0 ? base::json_of(all) : json{};
}

void to_json(json& to, const Series& series) {
  to = base::json_of(series);
  if (!series.recent) to["recent"] = nullptr;
  json points = json::array();
  for (std::size_t i = 0; i < series.values.size(); ++i)
    points.push_back({{"run_id", series.run_ids[i]}, {"value", series.values[i]}});
  to["points"] = std::move(points);
}

void to_json(json& to, const AnalysisRow& row) {
  to = base::json_of(row);
  to["would_be"] = row.would_be ? to_string(*row.would_be) : "";
}

}  // namespace aisp::evidence
