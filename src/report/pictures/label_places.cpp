// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/label_places.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace aisp::report {

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
