// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/line_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "report/pictures/plot.hpp"

namespace aisp::report {

namespace {

constexpr double least_left_px = 62, line_right_px = 14, plot_px = 210, line_row_px = 18, line_axis_px = 40;
constexpr std::size_t colours = 8, most_y_ticks = 6;
constexpr double log_room = 1.25;

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

class LineDrawing {
 public:
  LineDrawing(const LineChart& chart, double width) : chart_{chart}, width_{width} {}

  svg::Picture picture() {
    Extent xs, ys;
    for (const LineSeries& series : chart_.series)
      for (const LinePoint& point : series.points) {
        xs.take(point.x);
        ys.take(point.y);
      }
    if (xs.empty()) return {chart_.title, width_, 0, ""};
    const double room = ys.high > ys.low ? (ys.high - ys.low) * 0.08 : std::abs(ys.high) * 0.05;
    std::string head = legend();
    top_ = y_ + (chart_.series.size() < 2 ? line_row_px : 1.5 * line_row_px);
    const bool logarithmic_y = chart_.logarithmic_y && ys.low > 0;
    const double low = logarithmic_y ? ys.low / log_room : chart_.from_zero ? 0 : ys.low - room;
    const double high = logarithmic_y ? ys.high * log_room : ys.high + room;
    const Scale y{logarithmic_y, low, high, top_ + plot_px, top_};
    const std::vector<Tick> rows =
        y.ticks(most_y_ticks, [&](double tick) { return fmt::format("{:.6g}{}", tick, chart_.y_unit); });
    double left = least_left_px;
    for (const Tick& row : rows) left = std::max(left, svg::width_of(row.name) + 12);
    const Plot plot{.area = {left, top_, width_ - line_right_px - left, plot_px},
                    .x = {chart_.logarithmic_x && xs.low > 0, xs.low, xs.high, left + 8, width_ - line_right_px - 8},
                    .y = y};
    std::string body = head + svg::text("axis", 4, top_ - 8, chart_.y_title) + plot.rows(rows) + plot.columns(columns(plot)) +
                       plot.x_title(chart_.x_title);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) body += curve(chart_.series[i], class_of(i), plot);
    // On top, so that no curve crosses what they say.
    body += marks(plot);
    return {chart_.title, width_, plot.bottom() + line_axis_px, body};
  }

 private:
  // Returns the class of a series's line and dots. A ceiling takes no colour from the others.
  std::string class_of(std::size_t series) const {
    if (chart_.series[series].is_ceiling) return "ceiling";
    const auto begin = chart_.series.begin();
    const auto before =
        std::count_if(begin, begin + static_cast<std::ptrdiff_t>(series), [](const LineSeries& s) { return !s.is_ceiling; });
    return fmt::format("s{}", static_cast<std::size_t>(before) % colours);
  }

  std::string legend() {
    double x = 4;
    y_ = line_row_px - 4;
    std::string text;
    if (chart_.series.size() < 2) {
      y_ = 4;
      return text;
    }
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      const std::string name = svg::shortened(chart_.series[i].name, width_ - 24);
      const double needed = svg::width_of(name) + 30;
      if (x > 4 && x + needed > width_) {
        x = 4;
        y_ += line_row_px;
      }
      text += chart_.series[i].is_ceiling ? svg::line("ceiling", x, y_ - 4, x + 11, y_ - 4)
                                          : svg::circle(class_of(i), x + 5, y_ - 4, 4.5);
      text += svg::text("small", x + 14, y_, name);
      x += needed;
    }
    return text;
  }

  std::vector<Tick> columns(const Plot& plot) const {
    const std::size_t most = width_ < 600 ? 4 : 9;
    if (!chart_.x_ticks.empty()) return whole_ticks(plot.x);
    if (chart_.x_names.empty()) return plot.x.ticks(most, [](double tick) { return fmt::format("{:.6g}", tick); });
    std::vector<Tick> ticks;
    const std::size_t every = (chart_.x_names.size() + most - 1) / most;
    for (std::size_t i = 0; i < chart_.x_names.size(); i += every)
      ticks.push_back({static_cast<double>(i),
                       svg::shortened(chart_.x_names[i], (width_ - plot.area.x) / static_cast<double>(most)),
                       i == 0                               ? "start"
                       : i + every >= chart_.x_names.size() ? "end"
                                                            : "middle"});
    return ticks;
  }

  // Returns as many as do not touch each other, and the ends of the axis before all others.
  std::vector<Tick> whole_ticks(const Scale& x) const {
    std::vector<Tick> ticks;
    std::vector<std::pair<double, double>> taken;
    const auto add = [&](double value) {
      const std::string name = chart_.x_ticks_are_bytes ? base::human_bytes(value) : fmt::format("{:.0f}", value);
      const double place = x.at(value), half = svg::width_of(name) / 2 + 4;
      if (std::ranges::any_of(taken,
                              [&](const auto& other) { return place + half > other.first && place - half < other.second; }))
        return;
      taken.emplace_back(place - half, place + half);
      // Inside of the picture, whatever its length.
      ticks.push_back({value, name, place + half > width_ ? "end" : "middle"});
    };
    add(chart_.x_ticks.front());
    add(chart_.x_ticks.back());
    for (const double tick : chart_.x_ticks) add(tick);
    return ticks;
  }

  std::string marks(const Plot& plot) const {
    std::string lines, text;
    // A label goes below those that it would touch.
    std::vector<std::pair<double, double>> taken;
    for (const LineMark& mark : chart_.marks) {
      const double place = plot.x.at(mark.x), length = svg::width_of(mark.text) + 12;
      const bool is_right = place > width_ * 0.6;
      const double from = is_right ? place - length : place;
      const auto touched =
          std::ranges::count_if(taken, [&](const auto& other) { return from < other.second && from + length > other.first; });
      taken.emplace_back(from, from + length);
      lines += plot.upright("step", mark.x);
      text += svg::text("label", place + (is_right ? -6 : 6), top_ + 14 + 15 * static_cast<double>(touched), mark.text,
                        is_right ? "end" : "start");
    }
    return lines + text;
  }

  static std::string curve(const LineSeries& series, const std::string& css_class, const Plot& plot) {
    std::string path, dots;
    for (const LinePoint& point : series.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      const double x = plot.x.at(point.x), y = plot.y.at(point.y);
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x, y);
      if (!series.is_ceiling) dots += svg::circle(css_class, x, y, 3.5, point.tip);
    }
    return (series.is_joined ? fmt::format("<polyline class=\"series {}\" points=\"{}\"/>\n", css_class, path) : "") + dots;
  }

  const LineChart& chart_;
  double width_, y_ = 0, top_ = 0;
};

}  // namespace

svg::Picture line_picture(const LineChart& chart, double width) { return LineDrawing{chart, width}.picture(); }

svg::Picture stacked(const std::string& heading, const std::vector<LineChart>& charts, double width) {
  svg::Picture all{.title = charts.empty() ? heading : charts.front().title, .width = width, .height = 36, .body = {}};
  all.body = svg::text("name", 4, 20, svg::shortened(heading, width - 8));
  for (const LineChart& chart : charts) {
    const svg::Picture picture = line_picture(chart, width);
    all.body += fmt::format("<g transform=\"translate(0 {:.0f})\">\n{}</g>\n", all.height, picture.body);
    all.height += picture.height;
  }
  return all;
}

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
