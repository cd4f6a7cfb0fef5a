// SPDX-License-Identifier: Apache-2.0
#include "report/line_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "report/scale.hpp"

namespace aisp::report {
namespace {

constexpr double left_px = 62, right_px = 14, plot_px = 210, row_px = 18, axis_px = 40;
constexpr std::size_t colours = 8;

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

class Drawing {
 public:
  Drawing(const LineChart& chart, double width) : chart_{chart}, width_{width} {}

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
    top_ = y_ + row_px;
    const Scale x{chart_.logarithmic_x && xs.low > 0, xs.low, xs.high, left_px + 8, width_ - right_px - 8};
    const Scale y{false, chart_.from_zero ? 0 : ys.low - room, ys.high + room, top_ + plot_px, top_};
    std::string body = head + grid(x, y) + marks(x);
    for (std::size_t i = 0; i < chart_.series.size(); ++i) body += curve(chart_.series[i], i % colours, x, y);
    return {chart_.title, width_, top_ + plot_px + axis_px, body};
  }

 private:
  std::string legend() {
    double x = 4;
    y_ = row_px - 4;
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
        y_ += row_px;
      }
      text += svg::circle(fmt::format("s{}", i % colours), x + 5, y_ - 4, 4.5) + svg::text("small", x + 14, y_, name);
      x += needed;
    }
    return text;
  }

  std::string grid(const Scale& x, const Scale& y) const {
    const double bottom = top_ + plot_px, right = width_ - right_px;
    std::string text = svg::text("axis", 4, top_ - 8, chart_.y_title);
    for (const double tick : y.ticks(6)) {
      text += svg::line("grid", left_px, y.at(tick), right, y.at(tick));
      text += svg::text("tick", left_px - 6, y.at(tick) + 4, base::significant(tick) + chart_.y_unit, "end");
    }
    return text + upright(x, bottom) + svg::text("axis", (left_px + right) / 2, bottom + 34, chart_.x_title, "middle");
  }

  std::string upright(const Scale& x, double bottom) const {
    std::string text;
    const std::size_t most = width_ < 600 ? 4 : 9;
    if (chart_.x_names.empty()) {
      for (const double tick : x.ticks(most))
        text += svg::line("grid", x.at(tick), top_, x.at(tick), bottom) +
                svg::text("tick", x.at(tick), bottom + 16, base::significant(tick), "middle");
      return text;
    }
    const std::size_t every = (chart_.x_names.size() + most - 1) / most;
    for (std::size_t i = 0; i < chart_.x_names.size(); i += every) {
      const double place = x.at(static_cast<double>(i));
      text += svg::line("grid", place, top_, place, bottom);
      text +=
          svg::text("tick", place, bottom + 16, svg::shortened(chart_.x_names[i], (width_ - left_px) / static_cast<double>(most)),
                    i == 0                               ? "start"
                    : i + every >= chart_.x_names.size() ? "end"
                                                         : "middle");
    }
    return text;
  }

  std::string marks(const Scale& x) const {
    std::string text;
    for (const LineMark& mark : chart_.marks) {
      const double place = x.at(mark.x);
      const bool is_right = place > width_ * 0.6;
      text += svg::line("step", place, top_, place, top_ + plot_px);
      text += svg::text("label", place + (is_right ? -6 : 6), top_ + 14, mark.text, is_right ? "end" : "start");
    }
    return text;
  }

  static std::string curve(const LineSeries& series, std::size_t colour, const Scale& x, const Scale& y) {
    std::string path, dots;
    for (const LinePoint& point : series.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x.at(point.x), y.at(point.y));
      dots += svg::circle(fmt::format("s{}", colour), x.at(point.x), y.at(point.y), 3.5, point.tip);
    }
    return fmt::format("<polyline class=\"series s{}\" points=\"{}\"/>\n", colour, path) + dots;
  }

  const LineChart& chart_;
  double width_, y_ = 0, top_ = 0;
};

}  // namespace

svg::Picture line_picture(const LineChart& chart, double width) { return Drawing{chart, width}.picture(); }

}  // namespace aisp::report
