// SPDX-License-Identifier: Apache-2.0
// From values to places in a picture, and the grid that shows them. Private to report.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::report {

struct Box {
  double x = 0, y = 0, width = 0, height = 0;  // x, y: upper left
};
struct Segment {
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
};

bool overlap(const Box& a, const Box& b);
bool crosses(const Segment& segment, const Box& box);

// Finds places for labels near their points so that none covers another, a point or, where that can be, a line.
class LabelPlaces {
 public:
  explicit LabelPlaces(const Box& area) : area_{area} {}
  void keep_free(const Box& box) { taken_.push_back(box); }
  void avoid(const Segment& segment) { lines_.push_back(segment); }
  // Nothing when the area is full.
  std::optional<Box> place(double x, double y, double width, double height);

 private:
  std::optional<Box> search(const Box& label, double farthest, bool over_lines) const;
  bool is_free(const Box& box, bool over_lines) const;

  Box area_;
  std::vector<Box> taken_;
  std::vector<Segment> lines_;
};

struct Tick {
  double value = 0;
  std::string name;
  std::string_view anchor = "middle";  // of the name below a column
};

class Scale {
 public:
  // Over `low` to `high`, both above 0 where it is logarithmic; `from` and `to` are the places of the two.
  Scale(bool logarithmic, double low, double high, double from, double to);
  double at(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  // Returns round values inside of the range, of 1, 2 and 5 times the powers of ten, or fewer, so that `most` are not exceeded.
  std::vector<Tick> ticks(std::size_t most, const std::function<std::string(double)>& name) const;

 private:
  std::vector<double> round_values(std::size_t most) const;
  double position(double value) const;

  bool logarithmic_;
  double low_, high_, from_, to_;
};

// An area of a picture in which values have places.
struct Plot {
  Box area;
  Scale x, y{false, 0, 1, 0, 1};
  double names_px = 16;  // of the names of columns, below the area

  double right() const { return area.x + area.width; }
  double bottom() const { return area.y + area.height; }
  std::string upright(std::string_view css_class, double value) const;  // a line from top to bottom
  std::string columns(const std::vector<Tick>& ticks) const;
  std::string rows(const std::vector<Tick>& ticks) const;
  std::string x_title(std::string_view title) const;
};

}  // namespace aisp::report
