// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/sweep_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "report/numbers.hpp"

namespace aisp::report {
namespace {

using evidence::Curve;
using evidence::Sweep;
using evidence::SweptPoint;
using evidence::SweptVariant;
using evidence::VariantRole;

bool has_flops(const SweptVariant& variant) { return variant.cost.flops > 0 && !variant.cost.math.empty(); }
bool has_bytes(const SweptVariant& variant) { return variant.cost.bytes > 0; }

bool all_variants(const Sweep& sweep, bool (*holds)(const SweptVariant&)) {
  bool any = false;
  for (const SweptPoint& point : sweep.points)
    for (const SweptVariant& variant : point.variants) {
      any = true;
      if (!holds(variant)) return false;
    }
  return any;
}

// The quantity that a chart shows of a variant that takes `ms`; 0 where it has none.
struct ChartedQuantity {
  std::string title, unit;
  double (*raw)(const SweptVariant& variant, double ms) = nullptr;
  bool has_ceiling = false;
  double scale = 1;
  bool is_time = false;

  double value(const SweptVariant& variant, double ms) const { return raw(variant, ms) * scale; }
};

// In the unit in which the fastest variant has one to three digits before the point.
ChartedQuantity rate_quantity(const Sweep& sweep, const char* unit, double (*per_second)(const SweptVariant&, double)) {
  double fastest = 0;
  for (const SweptPoint& point : sweep.points)
    for (const SweptVariant& variant : point.variants)
      if (variant.median_ms > 0) fastest = std::max(fastest, per_second(variant, variant.median_ms));
  constexpr std::array<std::pair<const char*, double>, 4> prefixes = {{{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}}};
  for (const auto& [prefix, size] : prefixes)
    if (fastest >= size) return {fmt::format("{}{}/s", prefix, unit), "", per_second, true, 1 / size};
  return {fmt::format("{}/s", unit), "", per_second, true};
}

ChartedQuantity quantity_of(const Sweep& sweep, SweepQuantity wanted) {
  if (wanted == SweepQuantity::time)
    return {.title = "median",
            .unit = " ms",
            .raw = [](const SweptVariant&, double ms) { return ms; },
            .has_ceiling = true,
            .is_time = true};
  if (wanted == SweepQuantity::speedup)
    return {"speedup over the baseline", "x",
            [](const SweptVariant& v, double) { return v.role == VariantRole::baseline ? 1.0 : v.speedup.value_or(0); }, false};
  const bool bytes = all_variants(sweep, has_bytes), flops = all_variants(sweep, has_flops);
  const bool moves = sweep.bound == evidence::Bound::memory || sweep.bound == evidence::Bound::transfer;
  if (flops && !(moves && bytes))
    return rate_quantity(sweep, "FLOP", [](const SweptVariant& v, double ms) { return v.cost.flops / ms * 1e3; });
  if (bytes) return rate_quantity(sweep, "B", [](const SweptVariant& v, double ms) { return v.cost.bytes / ms * 1e3; });
  return {};
}

const SweptVariant* find(const SweptPoint& point, const std::string& name) {
  const auto found = std::ranges::find(point.variants, name, &SweptVariant::name);
  return found == point.variants.end() ? nullptr : &*found;
}

// In the order of the first point that has them, which is the pair's.
std::vector<std::string> variant_names(const Sweep& sweep) {
  std::vector<std::string> names;
  for (const SweptPoint& point : sweep.points)
    for (const SweptVariant& variant : point.variants)
      if (std::ranges::find(names, variant.name) == names.end()) names.push_back(variant.name);
  return names;
}

std::string fixed_text(const Curve& curve) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : curve.fixed) parts.push_back(fmt::format("{}={}", name, value));
  return base::join(parts, ", ");
}

std::string x_title(const Curve& curve) {
  if (curve.size.empty()) return "case";
  return curve.along.empty() ? curve.size : fmt::format("{} ({} with it)", curve.size, base::join(curve.along, ", "));
}

// A sweep that forms no curve is drawn as points side by side.
std::vector<Curve> drawn_curves(const Sweep& sweep) {
  std::vector<Curve> curves = evidence::curves_of(sweep.points);
  if (!curves.empty()) return curves;
  Curve all;
  for (std::size_t i = 0; i < sweep.points.size(); ++i) all.points.push_back(i);
  return {all};
}

// The points of one chart, and where they lie on its axis.
class Chart {
 public:
  Chart(const Sweep& sweep, const Curve& curve, const ChartedQuantity& quantity)
      : sweep_{sweep}, curve_{curve}, quantity_{quantity} {}

  LineChart chart() const {
    LineChart chart{.title = sweep_.target + ": " + quantity_.title + (curve_.fixed.empty() ? "" : ", " + fixed_text(curve_)),
                    .x_title = x_title(curve_),
                    .y_title = quantity_.title + (curve_.fixed.empty() ? "" : ", " + fixed_text(curve_)),
                    .logarithmic_x = curve_.geometric,
                    .y_unit = quantity_.unit};
    for (std::size_t i = 0; i < curve_.points.size(); ++i) {
      if (curve_.size.empty()) chart.x_names.push_back(point(i).name);
      else chart.x_ticks.push_back(x_of(i));
    }
    for (const std::string& name : variant_names(sweep_))
      if (LineSeries series = line_of(name); !series.points.empty()) chart.series.push_back(std::move(series));
    chart.logarithmic_y = quantity_.is_time && curve_.geometric && spread_of(chart) > 10;
    if (chart.series.empty() || !quantity_.has_ceiling) return chart;
    if (LineSeries line = ceiling(); !line.points.empty()) chart.series.push_back(std::move(line));
    return chart;
  }

 private:
  const SweptPoint& point(std::size_t i) const { return sweep_.points[curve_.points[i]]; }
  double x_of(std::size_t i) const {
    return curve_.size.empty() ? static_cast<double>(i) : static_cast<double>(point(i).sizes.at(curve_.size));
  }

  LineSeries line_of(const std::string& name) const {
    LineSeries series{.name = name, .points = {}, .is_joined = !curve_.size.empty()};
    for (std::size_t i = 0; i < curve_.points.size(); ++i) {
      const SweptVariant* const variant = find(point(i), name);
      if (variant == nullptr || !(variant->median_ms > 0)) continue;
      if (variant->role == VariantRole::library) series.name = name + " (library)";
      if (name == sweep_.lesson) series.name = name + " (lesson)";
      const double y = quantity_.value(*variant, variant->median_ms);
      if (!(y > 0)) continue;
      const std::string unit = quantity_.unit.empty() ? " " + quantity_.title : quantity_.unit;
      series.points.push_back(
          {x_of(i), y, fmt::format("{} {}, {}: {}{}", sweep_.target, point(i).name, name, base::significant(y), unit)});
    }
    return series;
  }

  // Returns the ceiling of the lesson's work, for other variants may do more.
  LineSeries ceiling() const {
    LineSeries series{.name = "what the machine allows", .points = {}, .is_ceiling = true, .is_joined = !curve_.size.empty()};
    for (std::size_t i = 0; i < curve_.points.size(); ++i) {
      const SweptVariant* const lesson = find(point(i), sweep_.lesson);
      if (lesson == nullptr || !lesson->floor_ms) continue;
      if (const double y = quantity_.value(*lesson, *lesson->floor_ms); y > 0) series.points.push_back({x_of(i), y, ""});
    }
    return series;
  }

  static double spread_of(const LineChart& chart) {
    double low = 0, high = 0;
    for (const LineSeries& series : chart.series)
      for (const LinePoint& point : series.points) {
        low = low > 0 ? std::min(low, point.y) : point.y;
        high = std::max(high, point.y);
      }
    return low > 0 ? high / low : 0;
  }

  const Sweep& sweep_;
  const Curve& curve_;
  const ChartedQuantity& quantity_;
};

std::string cell_of(const SweptVariant* variant) {
  return variant == nullptr || !(variant->median_ms > 0) ? "-" : base::display_ms(variant->median_ms);
}

struct Order {
  std::vector<std::string> sizes;   // whose values tell the points apart; empty: names do
  std::vector<std::size_t> points;  // curve after curve, then what lies on none
};

Order order_of(const Sweep& sweep) {
  Order order;
  const std::vector<Curve> curves = evidence::curves_of(sweep.points);
  for (const Curve& curve : curves) order.points.insert(order.points.end(), curve.points.begin(), curve.points.end());
  if (!curves.empty()) {
    for (const auto& [name, value] : curves.front().fixed) order.sizes.push_back(name);
    order.sizes.push_back(curves.front().size);
    order.sizes.insert(order.sizes.end(), curves.front().along.begin(), curves.front().along.end());
  }
  for (std::size_t i = 0; i < sweep.points.size(); ++i)
    if (std::ranges::find(order.points, i) == order.points.end()) order.points.push_back(i);
  return order;
}

}  // namespace

std::vector<LineChart> sweep_charts(const Sweep& sweep, SweepQuantity wanted) {
  const ChartedQuantity quantity = quantity_of(sweep, wanted);
  std::vector<LineChart> charts;
  if (quantity.raw == nullptr) return charts;
  for (const Curve& curve : drawn_curves(sweep))
    if (LineChart chart = Chart{sweep, curve, quantity}.chart(); !chart.series.empty()) charts.push_back(std::move(chart));
  return charts;
}

std::string sweep_svg(const Sweep& sweep, SweepQuantity quantity, double width) {
  std::vector<LineChart> charts = sweep_charts(sweep, quantity);
  if (charts.empty() && quantity == SweepQuantity::rate) charts = sweep_charts(sweep, SweepQuantity::time);
  if (charts.empty()) return {};
  return svg::alone(stacked(fmt::format("{} on {}", sweep.target, machine_text(sweep.recorded)), charts, width));
}

Rows sweep_summary(const Sweep& sweep) {
  const Order order = order_of(sweep);
  const std::vector<std::string> names = variant_names(sweep);
  std::vector<std::string> heading = order.sizes.empty() ? std::vector<std::string>{"case"} : order.sizes;
  heading.insert(heading.end(), names.begin(), names.end());
  heading.insert(heading.end(), {"speedup", "of ceiling"});
  Rows rows{heading};
  for (const std::size_t i : order.points) {
    const SweptPoint& point = sweep.points[i];
    std::vector<std::string> row;
    if (order.sizes.empty()) row.push_back(point.name);
    for (const std::string& size : order.sizes) {
      const auto found = point.sizes.find(size);
      row.push_back(found == point.sizes.end() ? "-" : std::to_string(found->second));
    }
    for (const std::string& name : names) row.push_back(cell_of(find(point, name)));
    const SweptVariant* const lesson = find(point, sweep.lesson);
    row.push_back(lesson != nullptr && lesson->speedup ? base::significant(*lesson->speedup) + "x" : "-");
    row.push_back(lesson != nullptr && lesson->floor_ms && lesson->median_ms > 0
                      ? fmt::format("{:.0f} %", 100 * *lesson->floor_ms / lesson->median_ms)
                      : "-");
    rows.push_back(std::move(row));
  }
  // No ceiling is known for any of them.
  if (std::all_of(rows.begin() + 1, rows.end(), [](const auto& row) { return row.back() == "-"; }))
    for (auto& row : rows) row.pop_back();
  return rows;
}

}  // namespace aisp::report
