// SPDX-License-Identifier: Apache-2.0
// Sweeps, rooflines, another machine and the history: sections that are mostly pictures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "report/html/parts.hpp"
#include "report/html/text.hpp"
#include "report/markdown/markdown.hpp"
#include "report/pictures/bar_picture.hpp"
#include "report/pictures/line_picture.hpp"
#include "report/pictures/sweep_picture.hpp"

namespace aisp::report::html {
namespace {

std::string section(const char* id, const char* title, const std::string& content) {
  return content.empty() ? "" : tag("section", tag("h2", title) + content, fmt::format("id=\"{}\"", id)) + "\n";
}

// The rows of pairs that are drawn, or of those that are not.
Rows rates_of(const Roofline& roofline, bool drawn) {
  Roofline some = roofline;
  std::erase_if(some.pairs, [&](const RooflinePair& pair) { return pair.is_drawn() != drawn; });
  return roofline_rows(some);
}

std::string roofline_part(const Roofline& roofline) {
  return svg::with_micro_sign(
      figure([&](double width) { return roofline_picture(roofline, width); }) +
      folded("All variants as a table", text_table("rates of " + roofline.title(), rates_of(roofline, true))));
}

LineChart history_chart(const evidence::Series& series) {
  const bool is_speedup = series.quantity == evidence::SeriesOf::speedup;
  LineChart chart{.title = fmt::format("{} {} over {}", series.target, series.variant, base::plural(series.values.size(), "run")),
                  .x_title = "run",
                  .y_title = is_speedup ? "speedup" : "median",
                  .from_zero = false,
                  .y_unit = is_speedup ? "x" : " ms",
                  .x_names = series.run_ids};
  LineSeries line{.name = series.variant};
  for (std::size_t i = 0; i < series.values.size(); ++i)
    line.points.push_back({static_cast<double>(i), series.values[i],
                           fmt::format("{}: {}{}", series.run_ids[i], base::significant(series.values[i], 4), chart.y_unit)});
  chart.series.push_back(std::move(line));
  const auto mark = [&](const evidence::SeriesStep& step) {
    chart.marks.push_back(
        {static_cast<double>(step.at) - 0.5, fmt::format("{:+.1f}\u00a0%", (step.after / step.before - 1) * 100)});
  };
  for (const evidence::SeriesStep& step : series.steps) mark(step);
  if (series.recent) mark(*series.recent);
  return chart;
}

}  // namespace

std::string sweep_section(const HtmlReport& report) {
  std::string text;
  const std::vector<evidence::Sweep> sweeps = evidence::sweeps_of(report.run.pairs);
  const std::vector<SweepTable> tables = sweep_tables(report.run.pairs);
  for (std::size_t i = 0; i < sweeps.size(); ++i) {
    text += tag("h3", escaped(sweeps[i].target));
    for (const SweepQuantity quantity : {SweepQuantity::rate, SweepQuantity::time, SweepQuantity::speedup})
      for (const LineChart& chart : sweep_charts(sweeps[i], quantity))
        text += figure([&](double width) { return line_picture(chart, width); });
    text += text_table("points of " + sweeps[i].target, sweep_summary(sweeps[i]));
    text += folded("All variants at all points", text_table("sweep of " + sweeps[i].target, tables[i].rows));
  }
  return section("sweeps", "Sweeps", text);
}

std::string roofline_section(const HtmlReport& report) {
  std::string text;
  Rows rest;
  const bool several = std::ranges::count_if(report.rooflines, [](const Roofline& roofline) { return roofline.drawn() > 0; }) > 1;
  for (const Roofline& roofline : report.rooflines) {
    if (roofline.drawn() > 0) {
      const std::string picture = roofline_part(roofline), title = escaped(roofline.title());
      text += several ? folded(fmt::format("{}: {}", title, base::plural(roofline.drawn(), "pair")), packed(picture))
                      : tag("h3", title) + picture;
    }
    const Rows others = rates_of(roofline, false);
    rest.insert(rest.end(), others.begin() + (rest.empty() ? 0 : 1), others.end());
  }
  if (text.empty())
    text = tag("p", "No pair that passed and was timed declares FLOPs and bytes of memory, so there is nothing to draw.",
               "class=\"note\"");
  if (rest.size() > 1)
    text += folded("Pairs without FLOPs per byte of memory", text_table("rates of pairs that are not drawn", rest));
  return section("roofline", "Rooflines", text);
}

std::string against_section(const HtmlReport& report) {
  if (!report.against) return {};
  const Machines machines = compare_machines(report.run, *report.against);
  std::string text = tag("p", escaped(machines.summary));
  for (const BarChart* chart : {&machines.speed, &machines.normalised})
    if (!chart->empty())
      text += tag("h3", escaped(chart->title)) + figure([&](double width) { return bar_picture(*chart, width); });
  text += folded("As a table", text_table("this run beside the other", machines.rows));
  return section("against", "Beside another run", text);
}

std::string history_section(const HtmlReport& report) {
  std::string text, rest;
  for (const evidence::Series& series : report.history) {
    if (series.values.size() < 2) continue;
    const std::string what = series.quantity == evidence::SeriesOf::speedup ? "speedup" : "median time";
    const std::string picture = tag("h3", escaped(fmt::format("{} {}: {}", series.target, series.variant, what))) +
                                figure([&](double width) { return line_picture(history_chart(series), width); });
    (series.steps.empty() && !series.recent ? rest : text) += picture;
  }
  if (text.empty() && !rest.empty()) text = tag("p", "No variant changed for good over these runs.", "class=\"note\"");
  if (!rest.empty()) text += folded("Variants without a lasting change", rest);
  return section("history", "History", text);
}

}  // namespace aisp::report::html
