// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/bar_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "report/pictures/plot.hpp"

namespace aisp::report {
namespace {

constexpr double bar_px = 13, gap_px = 7, group_px = 26, bar_axis_px = 22, name_px = 15;
// Names take more of a picture that is half as wide as a page.
constexpr double wide_enough_px = 700;

bool usable(double value, bool logarithmic) { return std::isfinite(value) && (logarithmic ? value > 0 : value >= 0); }

class BarDrawing {
 public:
  BarDrawing(const BarChart& chart, double width)
      : chart_{chart}, width_{width}, is_narrow_{width < 480}, left_{is_narrow_ ? 4 : name_column()}, scale_{make_scale()} {}

  svg::Picture picture() {
    std::string bars;
    for (const BarGroup& group : chart_.groups) bars += drawn(group);
    return {chart_.title, width_, y_ + bar_axis_px, grid(y_) + bars};
  }

 private:
  // As wide as the longest name and its detail, within reason.
  double name_column() const {
    double widest = 0;
    for (const BarGroup& group : chart_.groups)
      for (const Bar& bar : group.bars) widest = std::max(widest, svg::width_of(label_of(bar)));
    return std::clamp(widest + 14, 80.0, width_ * (width_ < wide_enough_px ? 0.54 : 0.48));
  }

  // Behind the bars, for their longest text; the longest bar need not be the one with it.
  double value_room() const {
    double widest = chart_.value_px;
    for (const BarGroup& group : chart_.groups)
      for (const Bar& bar : group.bars) widest = std::max(widest, svg::width_of(bar.text) + 10);
    return std::min(widest, width_ * 0.4);
  }

  static std::string label_of(const Bar& bar) { return bar.detail.empty() ? bar.name : bar.name + "  " + bar.detail; }

  Scale make_scale() const {
    double low = chart_.logarithmic ? chart_.reference.value_or(1) : 0, high = chart_.reference.value_or(low);
    for (const BarGroup& group : chart_.groups)
      for (const Bar& bar : group.bars) {
        if (!usable(bar.value, chart_.logarithmic)) continue;
        low = std::min({low, bar.value, usable(bar.low.value_or(low), chart_.logarithmic) ? bar.low.value_or(low) : low});
        high = std::max({high, bar.value, std::isfinite(bar.high.value_or(high)) ? bar.high.value_or(high) : high});
      }
    if (chart_.most) high = chart_.least ? *chart_.most : std::min(high, *chart_.most);
    if (chart_.least) low = std::min(low, *chart_.least);
    if (chart_.logarithmic && low < chart_.reference.value_or(1)) low *= 0.95;
    if (!(high > low)) high = low > 0 ? low * 2 : 1;
    return {chart_.logarithmic, low, high, left_, width_ - value_room()};
  }

  std::string grid(double bottom) const {
    const Plot plot{.area = {left_, 0, width_ - left_ - value_room(), bottom}, .x = scale_, .names_px = 15};
    const auto name = [&](double tick) { return fmt::format("{:.6g}{}", tick, chart_.tick_unit); };
    return plot.columns(scale_.ticks(static_cast<std::size_t>(plot.area.width / 52), name)) +
           (chart_.reference ? plot.upright("reference", *chart_.reference) : "");
  }

  std::string drawn(const BarGroup& group) {
    std::string text;
    if (!group.name.empty()) {
      text += svg::text("group", 4, y_ + group_px - 9, group.name);
      y_ += group_px;
    }
    for (const Bar& bar : group.bars) text += svg::link(bar.href, drawn(bar));
    y_ += 2;
    return text;
  }

  std::string drawn(const Bar& bar) {
    std::string text;
    if (is_narrow_) {
      text += svg::text("name", left_, y_ + name_px - 3, svg::shortened(label_of(bar), width_ - 8));
      y_ += name_px;
    } else {
      const std::string name = svg::shortened(bar.name, left_ - 12);
      text += svg::text("name", 4, y_ + bar_px - 2, name);
      const double room = left_ - 20 - svg::width_of(name);
      if (!bar.detail.empty() && room > 40)
        text += svg::text("small", left_ - 8, y_ + bar_px - 2, svg::shortened(bar.detail, room), "end");
    }
    text += shape(bar);
    y_ += bar_px + gap_px;
    return text;
  }

  std::string shape(const Bar& bar) const {
    if (!usable(bar.value, chart_.logarithmic)) return svg::text("small", left_ + 4, y_ + bar_px - 2, bar.text);
    const double start = chart_.logarithmic ? scale_.at(chart_.reference.value_or(scale_.low())) : left_,
                 end = scale_.at(bar.value);
    double outermost = std::max(start, end);
    std::string text = svg::rect(bar.css_class, std::min(start, end), y_, std::max(std::abs(end - start), 1.5), bar_px,
                                 fmt::format("{}: {}", label_of(bar), bar.text));
    if (chart_.most && bar.value > *chart_.most) text += svg::rect("back", end - 14, y_, 4, bar_px);
    if (bar.low && bar.high && usable(*bar.low, chart_.logarithmic) && usable(*bar.high, chart_.logarithmic)) {
      const double low = scale_.at(*bar.low), high = scale_.at(*bar.high), middle = y_ + bar_px / 2;
      if (high - low > 3)
        text += svg::line("whisker", low, middle, high, middle) + svg::line("whisker", low, middle - 3, low, middle + 3) +
                svg::line("whisker", high, middle - 3, high, middle + 3);
      outermost = std::max(outermost, high);
    }
    return text + svg::text("value", outermost + 6, y_ + bar_px - 2, svg::shortened(bar.text, width_ - outermost - 8));
  }

  const BarChart& chart_;
  double width_;
  bool is_narrow_;
  double left_;
  Scale scale_;
  double y_ = 0;
};

}  // namespace

bool BarChart::empty() const {
  return std::all_of(groups.begin(), groups.end(), [](const BarGroup& group) { return group.bars.empty(); });
}

svg::Picture bar_picture(const BarChart& chart, double width) { return BarDrawing{chart, width}.picture(); }

}  // namespace aisp::report
