// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "evidence/json.hpp"
#include "report/analysis/analysis.hpp"

namespace aisp::report {
namespace {

using evidence::AnalysisRow;
using nlohmann::json;

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

void put(json& to, const char* name, const std::optional<double>& value) {
  if (value) to[name] = number(*value);
}

void put(json& to, const char* name, const std::optional<evidence::Range>& range) {
  if (range) to[name] = {{"value", number(range->value)}, {"low", number(range->low)}, {"high", number(range->high)}};
}

json row_json(const AnalysisRow& row, const evidence::AnalysisOptions& options) {
  json result{{"target", row.target},
              {"variant", row.variant},
              {"lesson", row.lesson},
              {"best", row.best},
              {"hardware", row.hardware},
              {"machine", row.machine},
              {"finding", to_string(row.finding)},
              {"would_be", row.would_be ? to_string(*row.would_be) : ""},
              {"confirmed", row.confirmed},
              {"counts_as_regression", counts_as_regression(row, options)},
              {"lost_coverage", row.lost_coverage},
              {"measurements", row.measurements},
              {"run_id", row.run_id},
              {"detail", row.detail}};
  put(result, "speedup", row.speedup);
  put(result, "expected", row.expected);
  put(result, "median_ms", row.median_ms);
  put(result, "expected_median_ms", row.expected_median_ms);
  put(result, "baseline_median_ms", row.baseline_median_ms);
  put(result, "expected_baseline_median_ms", row.expected_baseline_median_ms);
  put(result, "floor_percent", row.percent_of_floor);
  put(result, "gpu_busy_percent", row.gpu_busy_percent);
  return result;
}

// Rows of one name: a repetition for each timed sample, of which its compare.py makes a U test, and the aggregates behind them.
// It prints whole numbers, which milliseconds would not fill, and wants a CPU time too: none is measured, so both are the same.
void add_google_rows(const evidence::PairResult& pair, const evidence::VariantResult& variant, json& rows) {
  const std::string name = pair.target + "/" + variant.name;
  const evidence::Timing& timing = *variant.timing;
  const std::vector<double>& samples_ms = timing.raw_times_ms;
  const auto row = [&](const std::string& called, double time_ms) -> json& {
    return rows.emplace_back(json{{"name", called},
                                  {"run_name", name},
                                  {"repetitions", samples_ms.size()},
                                  {"threads", 1},
                                  {"iterations", 1},
                                  {"real_time", number(time_ms * 1e3)},
                                  {"cpu_time", number(time_ms * 1e3)},
                                  {"time_unit", "us"}});
  };
  for (std::size_t i = 0; i < samples_ms.size(); ++i) {
    json& repetition = row(name, samples_ms[i]);
    repetition["run_type"] = "iteration";
    repetition["repetition_index"] = i;
  }
  for (const auto& [aggregate, time_ms] :
       {std::pair{"mean", timing.summary.mean}, {"median", timing.summary.median}, {"stddev", timing.summary.std}}) {
    json& aggregated = row(name + "_" + aggregate, time_ms);
    aggregated["run_type"] = "aggregate";
    aggregated["aggregate_name"] = aggregate;
    aggregated["aggregate_unit"] = "time";
  }
}

}  // namespace

std::string analysis_json(const evidence::Analysis& analysis) {
  json rows = json::array();
  for (const AnalysisRow& row : analysis.rows) rows.push_back(row_json(row, analysis.options));
  const json document{{"schema_version", evidence::schema_version},
                      {"runs", analysis.runs},
                      {"threshold_percent", analysis.options.threshold * 100},
                      {"strict", analysis.options.strict},
                      {"require_confirmation", analysis.options.require_confirmation},
                      {"exit_status", static_cast<int>(exit_status(analysis))},
                      {"warnings", analysis.warnings},
                      {"rows", std::move(rows)}};
  return evidence::json_text(document, 2) + '\n';
}

std::string github_action_benchmark(const evidence::Analysis& analysis) {
  json entries = json::array();
  for (const AnalysisRow& row : analysis.rows) {
    if (!row.speedup || row.finding == evidence::Finding::failed) continue;
    const double half = (row.speedup->high - row.speedup->low) / 2;
    entries.push_back({{"name", fmt::format("{} {} ({})", row.target, row.variant, row.hardware)},
                       {"unit", "x"},
                       {"value", number(row.speedup->value)},
                       {"range", fmt::format("± {:.3g}", half)},
                       {"extra", fmt::format("{}\nmedian {:.6g} ms", to_string(row.finding), row.median_ms.value_or(0))}});
  }
  return evidence::json_text(entries, 2) + '\n';
}

std::string google_benchmark(const std::vector<evidence::RunRecord>& runs) {
  json document{{"context", json::object()}, {"benchmarks", json::array()}};
  for (const evidence::RunRecord& run : runs) {
    const evidence::Manifest& manifest = run.manifest;
    if (document["context"].empty())
      document["context"] = {{"date", manifest.started_utc},
                             {"host_name", manifest.hostname},
                             {"executable", "aisp"},
                             {"num_cpus", manifest.cpus_online},
                             {"mhz_per_cpu", 0},
                             {"cpu_scaling_enabled", false},
                             {"caches", json::array()},
                             {"load_avg", json::array()},
                             {"library_version", manifest.aisp_version},
                             {"library_build_type", manifest.build_type},
                             {"json_schema_version", 1}};
    for (const evidence::PairResult& pair : run.pairs)
      for (const evidence::VariantResult& variant : pair.variants)
        if (pair.status == evidence::Status::passed && variant.timing) add_google_rows(pair, variant, document["benchmarks"]);
  }
  return evidence::json_text(document, 2) + '\n';
}

}  // namespace aisp::report
