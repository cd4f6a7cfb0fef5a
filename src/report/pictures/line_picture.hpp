// SPDX-License-Identifier: Apache-2.0
// Lines through measured points. Private to report.
#pragma once
#include <string>
#include <vector>

#include "report/pictures/svg.hpp"

namespace aisp::report {

struct LinePoint {
  double x = 0, y = 0;
  std::string tip;
};

struct LineSeries {
  std::string name;
  std::vector<LinePoint> points;
  bool is_ceiling = false;  // dashed, without dots
  bool is_joined = true;    // by a line
};

struct LineMark {  // an upright line
  double x = 0;
  std::string text;
};

struct LineChart {
  std::string title, x_title, y_title;
  bool logarithmic_x = false, logarithmic_y = false;
  bool from_zero = true;             // the upright axis, where it is not logarithmic
  std::string y_unit;                // behind the numbers of its ticks
  std::vector<std::string> x_names;  // of the places 0, 1, ...; empty: numbers
  std::vector<double> x_ticks;       // whole numbers to be named below the axis as far as there is room; empty: round ones
  bool x_ticks_are_bytes = false;    // "64 KiB"
  std::vector<LineSeries> series;    // eight at most have a colour of their own
  std::vector<LineMark> marks;
};

svg::Picture line_picture(const LineChart& chart, double width);
// Below each other, under one heading.
svg::Picture stacked(const std::string& heading, const std::vector<LineChart>& charts, double width);

// Latency over the working set, or the like over another size in bytes: both axes logarithmic, the levels named where they end.
struct Staircase {
  struct Point {
    double bytes = 0, value = 0;
  };
  struct Line {
    std::string name;
    std::vector<Point> points;
  };
  struct Mark {
    double bytes = 0;
    std::string text;
  };
  std::string title, y_title;  // "latency of a load"
  std::string unit;            // " ns"
  std::vector<Line> lines{};
  std::vector<Mark> marks{};
  std::string x_title = "working set";
};

// Below each other, alone in a file.
std::string staircase_svg(const std::string& heading, const std::vector<Staircase>& staircases, double width = 880);

}  // namespace aisp::report
