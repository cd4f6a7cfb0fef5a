// SPDX-License-Identifier: Apache-2.0
// Latency over the working set, or the like over another size in bytes: both axes logarithmic, the levels named where they end.
#pragma once
#include <string>
#include <vector>

namespace aisp::report {

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
