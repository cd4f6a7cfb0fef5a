// SPDX-License-Identifier: Apache-2.0
// Lines through measured points. Private to report.
#pragma once
#include <string>
#include <vector>

#include "report/svg.hpp"

namespace aisp::report {

struct LinePoint {
  double x = 0, y = 0;
  std::string tip;
};

struct LineSeries {
  std::string name;
  std::vector<LinePoint> points;
};

struct LineMark {  // an upright line
  double x = 0;
  std::string text;
};

struct LineChart {
  std::string title, x_title, y_title;
  bool logarithmic_x = false;
  bool from_zero = true;             // the upright axis
  std::string y_unit;                // behind the numbers of its ticks
  std::vector<std::string> x_names;  // of the places 0, 1, ...; empty: numbers
  std::vector<LineSeries> series;    // eight at most have a colour of their own
  std::vector<LineMark> marks;
};

svg::Picture line_picture(const LineChart& chart, double width);

}  // namespace aisp::report
