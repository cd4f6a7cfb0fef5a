// SPDX-License-Identifier: Apache-2.0
#include "report/analysis/analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/system/terminal.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "evidence/quantities.hpp"

namespace aisp::report {
namespace {

using evidence::Change;
using evidence::MetricChange;
using evidence::SeriesOf;
using nlohmann::json;

// More differences than this hide the one that matters; --json has them all.
constexpr std::size_t most_causes = 12;
// Environments and lists of GPUs fill screens.
constexpr std::size_t longest_cause = 100;

std::string quantity_text(double value, std::string_view unit) {
  if (unit == evidence::milliseconds_unit) return base::display_ms(value);
  if (unit == evidence::bytes_unit) return base::human_bytes(value);
  const bool apart = !unit.empty() && unit != evidence::times_unit;
  return fmt::format("{}{}{}", base::significant(value), apart ? " " : "", unit);
}

std::string_view unit_of(SeriesOf quantity) {
  return quantity == SeriesOf::speedup ? evidence::times_unit : evidence::milliseconds_unit;
}

std::string range_text(const evidence::Range& range, std::string_view unit) {
  if (range.low == range.high) return quantity_text(range.value, unit);
  return fmt::format("{} [{}, {}]", quantity_text(range.value, unit), quantity_text(range.low, unit),
                     quantity_text(range.high, unit));
}

std::string change_percent_text(double percent) { return std::isfinite(percent) ? fmt::format("{:+.1f} %", percent) : "-"; }

// Calls a change that processes may differ by slight only if it is small, too.
std::string finding_text(const MetricChange& metric, double threshold) {
  const bool is_large = std::isfinite(metric.change_percent) && std::fabs(metric.change_percent) >= threshold * 100;
  if (metric.change == Change::slightly_worse) return is_large ? "perhaps worse" : "slightly worse";
  if (metric.change == Change::slightly_better) return is_large ? "perhaps better" : "slightly better";
  return std::string{to_string(metric.change)};
}

std::string change_text(const MetricChange& metric, double threshold, const base::Painter& paint) {
  const base::Style bad = metric.is_regression ? base::Style::red : base::Style::yellow;
  std::string word = finding_text(metric, threshold);
  const std::string detail =
      metric.detail.empty() && word.starts_with("perhaps") ? "processes of equal code may differ by as much" : metric.detail;
  if (metric.change != Change::same) word = paint(is_loss(metric.change) ? bad : base::Style::green, word);
  return detail.empty() ? word : word + ": " + detail;
}

// Reasons and manifests may hold any text, so every line goes through here.
void add_line(const std::string& line, std::string& text) { text += base::on_screen(line) + '\n'; }

void add_list(const std::string& title, const std::vector<std::string>& targets, std::string& text) {
  if (!targets.empty()) add_line(fmt::format("{}: {}", title, base::join(targets, ", ")), text);
}

void add_causes(const std::vector<evidence::ManifestDifference>& causes, std::string& text) {
  for (std::size_t i = 0; i < causes.size() && i < most_causes; ++i)
    add_line(fmt::format("  {}: {} -> {}", causes[i].field, base::one_line(causes[i].before, longest_cause),
                         base::one_line(causes[i].after, longest_cause)),
             text);
  if (causes.size() > most_causes) text += fmt::format("  and {} more, see --json\n", causes.size() - most_causes);
}

// Returns a folder's name: the rest is the same for all runs that anybody compares.
std::string short_name(const std::string& side) {
  const std::string name = std::filesystem::path{side}.filename().string();
  return name.empty() ? side : name;
}

// Empty if no digests could be compared.
std::string outputs_text(const evidence::RunComparison& comparison) {
  if (comparison.outputs.empty())
    return comparison.equal_outputs == 0
               ? std::string{}
               : fmt::format("Outputs: {} bit for bit the same\n", base::plural(comparison.equal_outputs, "output"));
  std::string text = fmt::format("Outputs with other bits, of {}:\n",
                                 base::plural(comparison.outputs.size() + comparison.equal_outputs, "output"));
  for (const evidence::OutputChange& output : comparison.outputs)
    add_line(fmt::format("  {} {}, {}{}", output.target, output.variant, output.output,
                         output.repeatable ? "" : " (differs from execution to execution too)"),
             text);
  return text;
}

}  // namespace

std::vector<std::vector<std::string>> comparison_rows(const evidence::RunComparison& comparison, bool all,
                                                      const base::Painter& paint) {
  const bool runs = comparison.run.empty();
  std::vector<std::vector<std::string>> rows{
      {"pair", "variant", "metric", runs ? "before" : "baseline", runs ? "after" : "variant", "change", "finding"}};
  for (const MetricChange& metric : comparison.metrics)
    if (all || metric.change != Change::same)
      rows.push_back({metric.target, metric.variant, metric.metric, range_text(metric.before, metric.unit),
                      range_text(metric.after, metric.unit), change_percent_text(metric.change_percent),
                      change_text(metric, comparison.threshold, paint)});
  return rows;
}

std::string comparison_heading(const evidence::RunComparison& comparison) {
  if (comparison.machine_differences.empty()) return {};
  return fmt::format("Two machines ({}): what the host decides is shown and not judged\n",
                     base::without_controls(base::join(comparison.machine_differences, "; ")));
}

std::string comparison_notes(const evidence::RunComparison& comparison) {
  std::string text;
  for (const evidence::StatusChange& status : comparison.statuses)
    add_line(fmt::format("{}: {} -> {}{}", status.target, to_string(status.before), to_string(status.after),
                         status.reason.empty() ? "" : ", " + status.reason),
             text);
  for (const evidence::SizeChange& size : comparison.sizes)
    add_line(fmt::format("{}: other sizes, not compared: {} -> {}", size.target, size.before, size.after), text);
  add_list("Only in " + comparison.before, comparison.only_before, text);
  add_list("Only in " + comparison.after, comparison.only_after, text);
  add_list("Code changed", comparison.source_changed, text);
  text += outputs_text(comparison);
  if (comparison.causes.empty()) return text;
  text += "Likely causes, from the manifests:\n";
  add_causes(comparison.causes, text);
  return text;
}

std::string comparison_title(const evidence::RunComparison& comparison) {
  return base::on_screen(fmt::format("{} compared with {}", short_name(comparison.after), short_name(comparison.before)));
}

std::string overall_text(const evidence::RunComparison& comparison) {
  const evidence::Overall all = evidence::overall(comparison);
  if (all.kernels == 0) return {};
  std::string text = fmt::format("{} is {}x {} over {}", short_name(comparison.after), base::significant(all.geometric_mean),
                                 short_name(comparison.before), base::plural(all.kernels, "kernel"));
  if (all.kernels > 1)
    text += fmt::format(" of {} (geometric mean; from {}x for {} to {}x for {})", base::plural(all.pairs, "pair"),
                        base::significant(all.least), all.least_of, base::significant(all.most), all.most_of);
  return base::on_screen(text) + '\n';
}

std::string comparison_json(const std::vector<evidence::RunComparison>& comparisons, bool raw) {
  json list = comparisons;
  if (!raw)
    for (json& comparison : list)
      for (json& metric : comparison["metrics"])
        for (const char* samples : {"before_raw", "after_raw"}) metric.erase(samples);
  const json document =
      list.size() == 1 ? list.front() : json{{"schema_version", evidence::schema_version}, {"comparisons", std::move(list)}};
  return evidence::json_text(document, 2) + '\n';
}

std::vector<std::vector<std::string>> history_rows(const std::vector<evidence::Series>& history, bool all) {
  std::vector<std::vector<std::string>> rows{
      {"pair", "variant", "hardware", "machine", "quantity", "runs", "days", "first", "last", "steps"}};
  for (const evidence::Series& series : history) {
    if (!all && series.steps.empty() && !series.recent && series.quantity != SeriesOf::speedup) continue;
    const std::string_view unit = unit_of(series.quantity);
    std::vector<std::string> steps;
    for (const evidence::SeriesStep& step : series.steps)
      steps.push_back(
          fmt::format("{} -> {} at {}", quantity_text(step.before, unit), quantity_text(step.after, unit), step.run_id));
    if (series.recent)
      steps.push_back(fmt::format("{} -> {} since {}, recent", quantity_text(series.recent->before, unit),
                                  quantity_text(series.recent->after, unit), series.recent->run_id));
    rows.push_back({series.target, series.variant, series.hardware, series.machine, std::string{to_string(series.quantity)},
                    std::to_string(series.values.size()), std::to_string(series.days), quantity_text(series.values.front(), unit),
                    quantity_text(series.values.back(), unit), steps.empty() ? "none" : base::join(steps, "; ")});
  }
  return rows;
}

std::string history_notes(const std::vector<evidence::Series>& history) {
  std::string text;
  for (const evidence::Series& series : history) {
    const auto add = [&](const evidence::SeriesStep& step, const char* when) {
      add_line(fmt::format("{} {}, {}, {} {} (p = {:.3f}){}", series.target, series.variant, to_string(series.quantity), when,
                           step.run_id, step.p_value, step.source_changed ? ": its code changed" : ""),
               text);
      add_causes(step.causes, text);
    };
    for (const evidence::SeriesStep& step : series.steps) add(step, "at");
    if (series.recent) add(*series.recent, "since");
  }
  return text +
         "What is not seen here: a step with fewer than 10 days of runs, for the runs of one day count as one; what only the "
         "last\n"
         "run shows; what only the last 2, 3 or 4 days show, before there are 36, 17 or 13. A machine that is in another state "
         "for\n"
         "days raises false alarms.\n";
}

std::string history_json(const std::vector<evidence::Series>& history) {
  return evidence::json_text(json{{"schema_version", evidence::schema_version}, {"series", history}}, 2) + '\n';
}

}  // namespace aisp::report
