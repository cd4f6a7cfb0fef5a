// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/plot.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>

#include "report/pictures/svg.hpp"

namespace aisp::report {

namespace {

std::vector<double> decades(double low, double high, std::initializer_list<double> steps, int every) {
  std::vector<double> values;
  const int first = static_cast<int>(std::floor(std::log10(low))), last = static_cast<int>(std::ceil(std::log10(high)));
  for (int exponent = first; exponent <= last; exponent += every)
    for (const double step : steps)
      if (const double value = step * std::pow(10, exponent); value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9))
        values.push_back(value);
  return values;
}

}  // namespace

Scale::Scale(bool logarithmic, double low, double high, double from, double to)
    : logarithmic_{logarithmic}, low_{low}, high_{high}, from_{from}, to_{to} {}

double Scale::position(double value) const { return logarithmic_ ? std::log10(value) : value; }

double Scale::at(double value) const {
  const double low = position(low_), high = position(high_);
  // Halves, because the difference of two finite numbers may be none.
  const double part = high > low ? (position(value) / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
  return from_ + std::clamp(std::isfinite(part) ? part : 0.0, 0.0, 1.0) * (to_ - from_);
}

std::vector<double> Scale::round_values(std::size_t most) const {
  if (!(high_ > low_)) return {low_};
  if (logarithmic_) {
    std::vector<double> values = decades(low_, high_, {1, 2, 5}, 1);
    for (int every = 1; values.size() > most; ++every) values = decades(low_, high_, {1}, every);
    if (values.size() > 1) return values;
  }
  const double rough = (high_ - low_) / static_cast<double>(std::max<std::size_t>(most, 2) - 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough > 5 * power ? 10 : rough > 2 * power ? 5 : rough > power ? 2 : 1);
  std::vector<double> values;
  for (double value = std::ceil(low_ / step - 1e-9) * step; value <= high_ + step * 1e-9 && values.size() <= most; value += step)
    values.push_back(std::abs(value) < step * 1e-9 ? 0 : value);
  return values;
}

std::vector<Tick> Scale::ticks(std::size_t most, const std::function<std::string(double)>& name) const {
  std::vector<Tick> ticks;
  for (const double value : round_values(most)) ticks.push_back({value, name(value)});
  return ticks;
}

std::string Plot::upright(std::string_view css_class, double value) const {
  return svg::line(css_class, x.at(value), area.y, x.at(value), bottom());
}

std::string Plot::columns(const std::vector<Tick>& ticks) const {
  std::string text;
  for (const Tick& tick : ticks)
    text += upright("grid", tick.value) + svg::text("tick", x.at(tick.value), bottom() + names_px, tick.name, tick.anchor);
  return text;
}

std::string Plot::rows(const std::vector<Tick>& ticks) const {
  std::string text;
  for (const Tick& tick : ticks)
    text += svg::line("grid", area.x, y.at(tick.value), right(), y.at(tick.value)) +
            svg::text("tick", area.x - 6, y.at(tick.value) + 4, tick.name, "end");
  return text;
}

std::string Plot::x_title(std::string_view title) const {
  return svg::text("axis", area.x + area.width / 2, bottom() + 2 * names_px + 2, title, "middle");
}

bool overlap(const Box& a, const Box& b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

// Clips the segment to the box: something is left where they meet.
bool crosses(const Segment& segment, const Box& box) {
  double from = 0, to = 1;
  const auto clip = [&](double start, double delta, double low, double high) {
    if (delta == 0) return start >= low && start <= high;
    const double a = (low - start) / delta, b = (high - start) / delta;
    from = std::max(from, std::min(a, b));
    to = std::min(to, std::max(a, b));
    return from <= to;
  };
  return clip(segment.x1, segment.x2 - segment.x1, box.x, box.x + box.width) &&
         clip(segment.y1, segment.y2 - segment.y1, box.y, box.y + box.height);
}

bool LabelPlaces::is_free(const Box& box, bool over_lines) const {
  if (box.x < area_.x || box.y < area_.y || box.x + box.width > area_.x + area_.width ||
      box.y + box.height > area_.y + area_.height)
    return false;
  if (std::any_of(taken_.begin(), taken_.end(), [&](const Box& other) { return overlap(box, other); })) return false;
  return over_lines || std::none_of(lines_.begin(), lines_.end(), [&](const Segment& line) { return crosses(line, box); });
}

// In rings around the point, from the right round.
std::optional<Box> LabelPlaces::search(const Box& label, double farthest, bool over_lines) const {
  constexpr int directions = 24;
  for (double distance = 8; distance <= farthest; distance += 8)
    for (int i = 0; i < directions; ++i) {
      const double angle = 2 * std::numbers::pi * i / directions;
      const Box box{label.x + std::cos(angle) * (distance + label.width / 2) - label.width / 2,
                    label.y + std::sin(angle) * (distance + label.height / 2) - label.height / 2, label.width, label.height};
      if (is_free(box, over_lines)) return box;
    }
  return std::nullopt;
}

std::optional<Box> LabelPlaces::place(double x, double y, double width, double height) {
  constexpr double near = 120;
  const Box label{x, y, width, height};
  std::optional<Box> found = search(label, near, false);
  if (!found) found = search(label, near, true);
  if (!found) found = search(label, area_.width + area_.height, true);
  if (found) taken_.push_back(*found);
  return found;
}

}  // namespace aisp::report
