// SPDX-License-Identifier: Apache-2.0
// Horizontal bars with names, in groups. Private to report.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "report/pictures/svg.hpp"

namespace aisp::report {

// Bars of a ladder that climbs further cannot be told apart on a linear scale.
inline constexpr double most_on_linear_scale = 12;

struct Bar {
  std::string name, detail;  // "ch07:transpose", "tiled"
  double value = 0;
  std::optional<double> low, high;  // of its interval
  std::string text;                 // "7.72x"
  std::string css_class;            // baseline, optimized, best, library, slower, unclear
  std::string href;                 // empty: none
};

struct BarGroup {
  std::string name;  // empty: none
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title;
  bool logarithmic = false;
  std::optional<double> reference;  // a line across all bars, where bars of a logarithmic scale begin
  std::optional<double> most;       // longer bars end there, with a gap in them
  std::optional<double> least;      // the scale goes from there to `most`, whatever the bars are
  std::string tick_unit;            // "x", "%"
  double value_px = 64;             // room for the texts behind the bars
  std::vector<BarGroup> groups;

  bool empty() const;
};

svg::Picture bar_picture(const BarChart& chart, double width);

}  // namespace aisp::report
