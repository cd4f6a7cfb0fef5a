// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "evidence/profile/profile_difference.hpp"
#include "evidence/quantities.hpp"
#include "report/markdown/markdown.hpp"
#include "report/numbers.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

using evidence::PairResult;
using evidence::VariantResult;

std::string gpu_busy_text(const VariantResult& variant) {
  const auto percent = evidence::gpu_busy_percent(variant);
  return percent ? fmt::format("{:.0f} %", *percent) : std::string{};
}

std::string role_text(const PairResult& pair, const VariantResult& variant) {
  const std::string standing = standing_text(pair, variant);
  return standing.empty() ? std::string{to_string(variant.role)} : standing;
}

std::string results(const PairResult& pair) {
  MarkdownTable table{{"variant", "role", "median", "speedup, 95 % interval", "verdict", "gain", "of the library",
                       "of its lower bound", "limited by", "GPU at work", "prepare"}};
  for (const VariantResult& variant : pair.variants) {
    const evidence::Speedup* speedup = claimable(pair, variant);
    table.add({variant.name, role_text(pair, variant), median_text(variant), speedup != nullptr ? speedup_text(*speedup) : "-",
               speedup != nullptr
                   ? std::string{to_string(speedup->verdict)}
                   : std::string{to_string(variant.status)} + (variant.reason.empty() ? "" : ": " + variant.reason),
               gain_text(pair, variant), share_text(pair, variant), variant.floor ? floor_text(*variant.floor) : "",
               variant.floor ? variant.floor->held_back_by : "", gpu_busy_text(variant),
               variant.prepare_ms > 0 ? base::display_ms(variant.prepare_ms) : ""});
  }
  return table.text();
}

// The table of some of the results, nothing without any.
std::string section(std::string_view title, const Rows& rows) {
  return rows.size() < 2 ? "" : fmt::format("\n## {}\n{}", title, markdown_table(rows));
}

Rows metric_rows(const PairResult& pair) {
  Rows rows{{"variant", "metric", "median", "unit", "better"}};
  for (const VariantResult& variant : pair.variants)
    for (const evidence::Metric& metric : variant.metrics)
      rows.push_back({variant.name, metric.name, base::significant(metric.summary.median, 4), metric.unit,
                      std::string{to_string(metric.better)}});
  return rows;
}

// The tables are in profiles/profile.md.
std::string profile(const PairResult& pair) {
  const std::string sentence = evidence::profile_sentence(pair);
  if (sentence.empty()) return {};
  const bool has_tables = std::any_of(pair.variants.begin(), pair.variants.end(),
                                      [](const VariantResult& variant) { return variant.profile.has_value(); });
  return fmt::format("\n## Profile\n{}.{}\n", markdown_text(sentence), has_tables ? " All of it: ../profiles/profile.md" : "");
}

// For those who go on in Nsight's own windows.
std::string tool_reports(const PairResult& pair) {
  std::vector<std::string> files;
  for (const VariantResult& variant : pair.variants) {
    if (variant.counters && !variant.counters->report.empty()) files.push_back(variant.counters->report);
    if (variant.nsys_report) files.push_back(*variant.nsys_report);
  }
  return files.empty() ? "" : fmt::format("\nReports of Nsight: {}\n", markdown_text(base::join(files, ", ")));
}

std::string notes(const PairResult& pair) {
  std::string text;
  const auto add = [&](const std::string& line) { text += fmt::format("- {}\n", markdown_text(line)); };
  for (const evidence::Problem& problem : pair.problems)
    add(fmt::format("{}: {}{}", place_of(problem), problem.message, problem.advice.empty() ? "" : "; " + problem.advice));
  for (const std::string& warning : pair.warnings) add("warning: " + warning);
  for (const std::string& note : pair.notes) add(note);
  for (const evidence::Lost& lost : pair.lost) add("not available here: " + lost.text);
  return text.empty() ? "" : "\n## Notes\n" + text;
}

}  // namespace

std::string pair_markdown(const PairResult& pair) {
  std::string head = fmt::format("# {}\n\n{}.\n\nStatus: {}{}\n", markdown_text(label_of(pair)), markdown_text(pair.teaches),
                                 to_string(pair.status), pair.reason.empty() ? "" : ": " + markdown_text(pair.reason));
  if (const std::string timed = timed_text(pair); !timed.empty()) head += markdown_text(timed) + '\n';
  std::string groups;
  for (const std::string_view group : evidence::quantity_groups) groups += section(group, quantity_rows(pair, group));
  return head + "\n" + results(pair) + groups + section("Compiled kernels", kernel_rows(pair)) +
         section("Metrics", metric_rows(pair)) + profile(pair) + section("Hardware counters", counters_table(pair)) +
         tool_reports(pair) + section("Stages", stage_rows(pair)) + notes(pair);
}

}  // namespace aisp::report
