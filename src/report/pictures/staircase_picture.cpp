// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/staircase_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "report/pictures/line_picture.hpp"

namespace aisp::report {
namespace {

// Powers of four of a KiB, so that neighbours do not touch.
std::vector<double> ticks_of(const Staircase& staircase) {
  double low = 0, high = 0;
  for (const Staircase::Line& line : staircase.lines)
    for (const Staircase::Point& point : line.points) {
      low = low > 0 ? std::min(low, point.bytes) : point.bytes;
      high = std::max(high, point.bytes);
    }
  std::vector<double> ticks;
  for (double tick = 1024; tick <= high * 1.001; tick *= 4)
    if (tick >= low) ticks.push_back(tick);
  return ticks;
}

LineChart chart_of(const Staircase& staircase) {
  LineChart chart{.title = staircase.title,
                  .x_title = staircase.x_title,
                  .y_title = staircase.y_title,
                  .logarithmic_x = true,
                  .logarithmic_y = true,
                  .y_unit = staircase.unit,
                  .x_ticks = ticks_of(staircase),
                  .x_ticks_are_bytes = true};
  for (const Staircase::Line& line : staircase.lines) {
    LineSeries series{.name = line.name, .points = {}};
    for (const Staircase::Point& point : line.points)
      if (point.value > 0)
        series.points.push_back({point.bytes, point.value,
                                 fmt::format("{}, {}: {}{}", line.name, base::human_bytes(point.bytes),
                                             base::significant(point.value), staircase.unit)});
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  for (const Staircase::Mark& mark : staircase.marks) chart.marks.push_back({mark.bytes, mark.text});
  return chart;
}

}  // namespace

std::string staircase_svg(const std::string& heading, const std::vector<Staircase>& staircases, double width) {
  std::vector<LineChart> charts;
  for (const Staircase& staircase : staircases)
    if (LineChart chart = chart_of(staircase); !chart.series.empty()) charts.push_back(std::move(chart));
  return svg::alone(stacked(heading, charts, width));
}

}  // namespace aisp::report
