// SPDX-License-Identifier: Apache-2.0
// Rows of an analysis, comparisons and histories as JSON.
#include "evidence/comparison/comparison.hpp"
#include "evidence/comparison/history.hpp"
#include "evidence/fields.hpp"

namespace aisp::evidence {

AISP_DESCRIBE(ManifestDifference, field, before, after)
AISP_DESCRIBE(MetricChange, target, variant, metric, unit, better, before, after, change_percent, change, is_regression, detail,
              before_raw, after_raw)
AISP_DESCRIBE(StatusChange, target, before, after, reason)
AISP_DESCRIBE(SizeChange, target, before, after)

template <class Visitor>
void describe(OutputChange& o, Visitor& visit) {
  AISP_VISIT(visit, o, target, variant, output);
  visit("bitwise_repeatable", o.repeatable);
}

AISP_DESCRIBE(Overall, kernels, pairs, geometric_mean, least, least_of, most, most_of)

template <class Visitor>
void describe(RunComparison& c, Visitor& visit) {
  AISP_VISIT(visit, c, before, after, run, same_hardware, machine_differences, metrics, statuses, only_before, only_after,
             source_changed, causes);
  visit("sizes_changed", c.sizes);
  visit("outputs_changed", c.outputs);
  visit("outputs_equal", c.equal_outputs);
}

AISP_DESCRIBE(SeriesStep, run_id, before, after, p_value, source_changed, causes)
AISP_DESCRIBE(Series, target, variant, hardware, machine, quantity, days, steps, recent)

template <class Visitor>
void describe(AnalysisRow& r, Visitor& visit) {
  AISP_VISIT(visit, r, target, variant, lesson, best, hardware, machine, finding, confirmed, measurements, counts_as_regression,
             lost_coverage, run_id, detail, speedup, expected, median_ms, expected_median_ms, baseline_median_ms,
             expected_baseline_median_ms, gpu_busy_percent);
  visit("floor_percent", r.percent_of_floor);
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
