// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/intensity_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.hpp"
#include "report/pictures/scale.hpp"
#include "report/pictures/svg.hpp"

namespace aisp::report {
namespace {

constexpr double width_px = 1000, left_px = 210, right_px = 190, row_px = 28, head_px = 62, ridge_px = 17, dot_px = 5.5;
constexpr double alike = 0.05;  // counted intensities that differ by less are not told apart

// Intensities with their type of math and the variants that have them.
using Dots = std::map<std::pair<double, std::string>, std::vector<std::string>>;

struct IntensityRow {
  std::string name;
  Dots dots;
  // By the bytes that counters saw: of the baseline and of the lesson. 0 where one was not counted, or both are alike.
  double before = 0, after = 0;

  double least() const { return before > 0 ? std::min({dots.begin()->first.first, before, after}) : dots.begin()->first.first; }
  double most() const { return before > 0 ? std::max({dots.rbegin()->first.first, before, after}) : dots.rbegin()->first.first; }
};

std::vector<IntensityRow> rows_of(const Roofline& roofline) {
  std::vector<IntensityRow> rows;
  for (const RooflinePair& pair : roofline.pairs) {
    if (!pair.is_drawn()) continue;
    IntensityRow row{.name = pair.target.substr(pair.target.find(':') + 1), .dots = {}};
    for (const RooflinePoint& point : pair.points)
      if (point.has_place()) row.dots[{point.intensity(), point.cost.math}].push_back(point.variant);
    const auto lesson = std::ranges::find_if(pair.points, &RooflinePoint::lesson);
    if (lesson != pair.points.end() && pair.points.front().counted_intensity() > 0 && lesson->counted_intensity() > 0 &&
        std::abs(lesson->counted_intensity() / pair.points.front().counted_intensity() - 1) > alike) {
      row.before = pair.points.front().counted_intensity();
      row.after = lesson->counted_intensity();
    }
    rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(rows, {}, [](const IntensityRow& row) { return row.dots.rbegin()->first.first; });
  return rows;
}

class IntensityDrawing {
 public:
  explicit IntensityDrawing(const Roofline& roofline) : roofline_{roofline}, rows_{rows_of(roofline)}, scale_{make_scale()} {
    for (const IntensityRow& row : rows_)
      for (const auto& [intensity, variants] : row.dots) maths_.insert(intensity.second);
    for (const std::string& math : maths_) {
      const auto roof = roofline_.ceilings.flops_s.find(math);
      if (roof == roofline_.ceilings.flops_s.end() || roofline_.ceilings.memory_bytes_s <= 0) continue;
      const double ridge = roof->second / roofline_.ceilings.memory_bytes_s;
      if (ridge >= scale_.low() && ridge <= scale_.high()) ridges_[ridge] = math;
    }
  }

  svg::Picture picture() const {
    std::string body = svg::text("heading", 4, 22, title());
    body +=
        svg::text("small", 4, 42, "FLOPs that each pair declares for a byte of memory that it must move, on a logarithmic axis");
    body += grid() + ridges();
    for (std::size_t i = 0; i < rows_.size(); ++i) body += drawn(rows_[i], top() + row_px * (static_cast<double>(i) + 0.5));
    body +=
        svg::text("small", 4, bottom() + 44,
                  "Left of its ridge (dashed, measured math rate over memory bandwidth) bytes set the time, right of it math.");
    body += svg::text("small", 4, bottom() + 62, "Ceilings: " + ceilings_text(roofline_.ceilings));
    if (!counts()) return {title(), width_px, bottom() + 72, body};
    body += svg::text("small", 4, bottom() + 80,
                      "Arrows: by the bytes that counters saw in device memory, from the baseline to the lesson.");
    return {title(), width_px, bottom() + 90, body};
  }

 private:
  bool counts() const {
    return std::ranges::any_of(rows_, [](const IntensityRow& row) { return row.before > 0; });
  }
  std::string title() const { return "Arithmetic intensity, " + roofline_.title(); }
  double top() const { return head_px + ridge_px * static_cast<double>(ridges_.size()); }
  double bottom() const { return top() + row_px * static_cast<double>(rows_.size()) + 4; }

  Scale make_scale() const {
    double low = 1, high = 10;
    for (const IntensityRow& row : rows_) {
      low = std::min(low, row.least());
      high = std::max(high, row.most());
    }
    return {true, low / 1.6, high * 1.6, left_px, width_px - right_px};
  }

  // Returns the type of math's own class.
  std::string css_class(const std::string& math) const {
    const auto place = static_cast<std::size_t>(std::distance(maths_.begin(), maths_.find(math)));
    return fmt::format("s{}", place % 8);
  }

  std::string grid() const {
    std::string text;
    for (const double tick : scale_.ticks(12)) {
      text += svg::line("grid", scale_.at(tick), top() - 6, scale_.at(tick), bottom());
      text += svg::text("tick", scale_.at(tick), bottom() + 17, base::significant(tick, 1), "middle");
    }
    return text;
  }

  // Each with its name on a line of its own, the leftmost on top, so that no name crosses the next ridge.
  std::string ridges() const {
    std::string text;
    double y = head_px;
    for (const auto& [ridge, math] : ridges_) {
      text += svg::line("reference", scale_.at(ridge), y - 6, scale_.at(ridge), bottom());
      text += svg::circle(css_class(math), scale_.at(ridge) + 10, y, 4);
      text += svg::text("name", scale_.at(ridge) + 18, y + 4, fmt::format("{} ridge {}", math, base::significant(ridge)));
      y += ridge_px;
    }
    return text;
  }

  std::string arrow(const IntensityRow& row, double y) const {
    const double from = scale_.at(row.before), to = scale_.at(row.after), head = to > from ? -6 : 6, below = y + 9;
    return svg::line("arrow", from, below, to, below) +
           fmt::format("<path class=\"arrow\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", to + head, below - 3, to,
                       below, to + head, below + 3) +
           svg::circle("arrow", from, below, 2,
                       fmt::format("counted: {} FLOP/byte before, {} after", base::significant(row.before, 2),
                                   base::significant(row.after, 2)));
  }

  std::string drawn(const IntensityRow& row, double y) const {
    std::string text = svg::text("name", left_px - 12, y + 4, svg::shortened(row.name, left_px - 20), "end");
    text += svg::line("leader", scale_.at(row.dots.begin()->first.first), y, scale_.at(row.dots.rbegin()->first.first), y);
    if (row.before > 0) text += arrow(row, y);
    std::vector<std::string> values;
    for (const auto& [intensity, variants] : row.dots) {
      const std::string value = base::significant(intensity.first, 2);
      text += svg::circle(css_class(intensity.second), scale_.at(intensity.first), y, dot_px,
                          fmt::format("{}: {} FLOP/byte in {}", base::join(variants, ", "), value, intensity.second));
      if (values.empty() || values.back() != value) values.push_back(value);
    }
    const std::string words =
        values.size() > 3 ? fmt::format("{} to {}", values.front(), values.back()) : base::join(values, ", ");
    return text + svg::text("value", scale_.at(row.most()) + 12, y + 4, words);
  }

  const Roofline& roofline_;
  std::vector<IntensityRow> rows_;
  Scale scale_;
  std::set<std::string> maths_;
  std::map<double, std::string> ridges_;  // where they lie, within the scale
};

}  // namespace

std::string intensity_svg(const Roofline& roofline) { return svg::alone(IntensityDrawing{roofline}.picture()); }

}  // namespace aisp::report
