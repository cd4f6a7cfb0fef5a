// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "evidence/json.hpp"
#include "report/analysis/analysis.hpp"
#include "report/quote.hpp"

namespace aisp::report {

namespace {

using evidence::AnalysisRow;
using nlohmann::json;

// A column of proof_of_benefit.csv: a member of a row's JSON, by default of its name, or its change from another one in percent.
struct ProofColumn {
  const char* name;
  const char* member = "";
  const char* before = "";
};

constexpr ProofColumn proof_columns[] = {{"target"},
                                         {"variant"},
                                         {"lesson"},
                                         {"best"},
                                         {"hardware"},
                                         {"machine"},
                                         {"finding"},
                                         {"would_be"},
                                         {"confirmed"},
                                         {"measurements"},
                                         {"speedup", "speedup/value"},
                                         {"speedup_low", "speedup/low"},
                                         {"speedup_high", "speedup/high"},
                                         {"expected_speedup", "expected/value"},
                                         {"expected_low", "expected/low"},
                                         {"expected_high", "expected/high"},
                                         {"speedup_change_percent", "speedup/value", "expected/value"},
                                         {"median_ms"},
                                         {"expected_median_ms"},
                                         {"median_change_percent", "median_ms", "expected_median_ms"},
                                         {"baseline_median_ms"},
                                         {"expected_baseline_median_ms"},
                                         {"baseline_change_percent", "baseline_median_ms", "expected_baseline_median_ms"},
                                         {"percent_of_floor", "floor_percent"},
                                         {"gpu_busy_percent"},
                                         {"run_id"},
                                         {"detail"}};

json member_of(const json& row, std::string_view path) { return row.value(json::json_pointer{fmt::format("/{}", path)}, json{}); }

std::string proof_field(const json& row, const ProofColumn& column) {
  const std::string_view before = column.before;
  json value = member_of(row, *column.member == 0 ? column.name : column.member);
  if (const json from = member_of(row, before); !before.empty())
    value =
        value.is_number() && from.is_number() ? json(evidence::change_percent(from.get<double>(), value.get<double>())) : json{};
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  return value.is_number() && std::isfinite(value.get<double>()) ? fmt::format("{:.9g}", value.get<double>()) : std::string{};
}

// Rows of one name: a repetition for each timed sample, of which its compare.py makes a U test, and the aggregates after them.
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
                                  {"real_time", time_ms * 1e3},
                                  {"cpu_time", time_ms * 1e3},
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
  const json document{{"schema_version", evidence::schema_version},
                      {"runs", analysis.runs},
                      {"threshold_percent", analysis.options.threshold * 100},
                      {"strict", analysis.options.strict},
                      {"require_confirmation", analysis.options.require_confirmation},
                      {"exit_status", static_cast<int>(exit_status(analysis))},
                      {"warnings", analysis.warnings},
                      {"rows", analysis.rows}};
  return evidence::json_text(document, 2) + '\n';
}

std::string proof_of_benefit_csv(const evidence::Analysis& analysis) {
  std::vector<std::string> fields;
  for (const ProofColumn& column : proof_columns) fields.emplace_back(column.name);
  std::string text = csv_line(fields);
  for (const json row : analysis.rows) {
    std::ranges::transform(proof_columns, fields.begin(), [&](const ProofColumn& each) { return proof_field(row, each); });
    text += csv_line(fields);
  }
  return text;
}

std::string github_action_benchmark(const evidence::Analysis& analysis) {
  json entries = json::array();
  for (const AnalysisRow& row : analysis.rows) {
    if (!row.speedup || row.finding == evidence::Finding::failed) continue;
    const double half = (row.speedup->high - row.speedup->low) / 2;
    entries.push_back({{"name", fmt::format("{} {} ({})", row.target, row.variant, row.hardware)},
                       {"unit", "x"},
                       {"value", row.speedup->value},
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

namespace {

using evidence::AnalysisRow;
using evidence::Finding;

bool is_error(const AnalysisRow& row) { return row.finding == Finding::failed || row.finding == Finding::missing; }

bool is_warning(const AnalysisRow& row) {
  return row.finding == Finding::regressed || row.finding == Finding::slower || row.finding == Finding::drifted ||
         row.finding == Finding::stale || row.lost_coverage;
}

std::string name_of(const AnalysisRow& row) {
  return row.target + (row.variant.empty() ? "" : " " + row.variant) + (row.hardware.empty() ? "" : " on " + row.hardware);
}

std::string numbers_of(const AnalysisRow& row) {
  if (!row.speedup || !row.expected) return row.detail;
  return fmt::format("{:.3g}x [{:.3g}, {:.3g}] where {:.3g}x [{:.3g}, {:.3g}] was expected ({:+.1f} %){}{}", row.speedup->value,
                     row.speedup->low, row.speedup->high, row.expected->value, row.expected->low, row.expected->high,
                     evidence::change_percent(row.expected->value, row.speedup->value), row.detail.empty() ? "" : "; ",
                     row.detail);
}

std::string finding_of(const AnalysisRow& row) {
  return std::string{to_string(row.finding)} + (row.confirmed ? " (confirmed)" : "");
}

std::string test_case(const AnalysisRow& row) {
  std::string body;
  const std::string message = xml_escaped(finding_of(row) + ": " + numbers_of(row));
  if (is_error(row)) body = fmt::format(R"(<error type="{}" message="{}"/>)", to_string(row.finding), message);
  else if (row.counts_as_regression) body = fmt::format(R"(<failure type="{}" message="{}"/>)", to_string(row.finding), message);
  else if (row.finding == Finding::skipped) body = fmt::format(R"(<skipped message="{}"/>)", xml_escaped(row.detail));
  else body = fmt::format("<system-out>{}</system-out>", message);
  const double seconds = row.median_ms.value_or(0) / 1000;
  return fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\">{}</testcase>\n",
                     xml_escaped("aisp." + row.target.substr(0, row.target.find(':'))), xml_escaped(name_of(row)), seconds, body);
}

}  // namespace

std::string junit_xml(const evidence::Analysis& analysis) {
  std::size_t errors = 0, failures = 0, skipped = 0;
  std::string cases;
  for (const AnalysisRow& row : analysis.rows) {
    if (is_error(row)) ++errors;
    else if (row.counts_as_regression) ++failures;
    else if (row.finding == Finding::skipped) ++skipped;
    cases += test_case(row);
  }
  const std::string counts = fmt::format(R"(tests="{}" failures="{}" errors="{}")", analysis.rows.size(), failures, errors);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"aisp\" {0}>\n"
      "  <testsuite name=\"aisp analyze\" {0} skipped=\"{1}\">\n{2}  </testsuite>\n</testsuites>\n",
      counts, skipped, cases);
}

std::string github_annotations(const evidence::Analysis& analysis) {
  std::string errors, warnings;
  for (const AnalysisRow& row : analysis.rows) {
    const bool error = is_error(row) || row.counts_as_regression;
    if (!error && !is_warning(row)) continue;
    (error ? errors : warnings) +=
        fmt::format("::{} title={}::{}\n", error ? "error" : "warning",
                    github_property(fmt::format("{}: {}", name_of(row), finding_of(row))), github_message(numbers_of(row)));
  }
  // GitHub shows the first ten of a kind only.
  return errors + warnings;
}

}  // namespace aisp::report
