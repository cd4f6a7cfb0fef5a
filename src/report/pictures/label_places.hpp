// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
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

}  // namespace aisp::report
