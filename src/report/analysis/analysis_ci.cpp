// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "report/analysis/analysis.hpp"
#include "report/quote.hpp"

namespace aisp::report {
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
