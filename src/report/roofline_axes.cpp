// SPDX-License-Identifier: Apache-2.0
#include "report/roofline_axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace aisp::report {
namespace {

constexpr int most_ticks = 12;

std::vector<const RooflinePoint*> drawn_points(const Roofline& roofline) {
  std::vector<const RooflinePoint*> points;
  for (const RooflinePair& pair : roofline.pairs)
    for (const RooflinePoint& point : pair.points)
      if (pair.is_drawn() && point.has_place()) points.push_back(&point);
  return points;
}

std::vector<double> intensities(const Roofline& roofline) {
  std::vector<double> values;
  for (const RooflinePoint* point : drawn_points(roofline)) values.push_back(point->intensity());
  for (const auto& [math, flops_s] : roofline.ceilings.flops_s)
    if (roofline.ceilings.memory_bytes_s > 0) values.push_back(flops_s / roofline.ceilings.memory_bytes_s);
  return values;
}

std::vector<double> rates(const Roofline& roofline) {
  std::vector<double> values;
  for (const RooflinePoint* point : drawn_points(roofline)) values.push_back(point->flops_s());
  for (const auto& [math, flops_s] : roofline.ceilings.flops_s) values.push_back(flops_s);
  return values;
}

}  // namespace

Axis::Axis(const std::vector<double>& values, double from, double to) : from_{from}, to_{to} {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  // Room for the labels of the outermost points.
  constexpr double margin = 0.3;
  low_exponent_ = values.empty() ? 0 : std::floor(std::log10(*least) - margin);
  high_exponent_ = values.empty() ? 1 : std::ceil(std::log10(*most) + margin);
}

double Axis::low() const { return std::pow(10, low_exponent_); }
double Axis::high() const { return std::pow(10, high_exponent_); }

double Axis::at(double value) const {
  return from_ + (std::log10(value) - low_exponent_) / (high_exponent_ - low_exponent_) * (to_ - from_);
}

std::vector<double> Axis::ticks() const {
  const int decades = static_cast<int>(high_exponent_ - low_exponent_);
  const int step = (decades + most_ticks - 1) / most_ticks;
  std::vector<double> values;
  for (int i = 0; i <= decades; i += step) values.push_back(std::pow(10, low_exponent_ + i));
  return values;
}

Axes::Axes(const Roofline& roofline, const Box& box)
    : area{box}, x{intensities(roofline), box.x, box.x + box.width}, y{rates(roofline), box.y + box.height, box.y} {}

std::string rate_label(double flops_s) {
  constexpr std::array prefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; flops_s >= 999.5 && prefix + 1 < prefixes.size(); ++prefix) flops_s /= 1000;
  return fmt::format("{:.3g} {}FLOP/s", flops_s, prefixes[prefix]);
}

std::string xml(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result;
}

}  // namespace aisp::report
