// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/plot.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

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

}  // namespace aisp::report
