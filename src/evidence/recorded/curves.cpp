// SPDX-License-Identifier: Apache-2.0
// Which points of a sweep lie on one curve.
#include <algorithm>
#include <set>

#include "evidence/recorded/recorded.hpp"

namespace aisp::evidence {
namespace {

using SizeMap = std::map<std::string, std::uint64_t>;
using Points = std::vector<SweptPoint>;

// 0 where a point has no such size: all points of a pair have the same ones, but a file may say otherwise.
std::uint64_t value_at(const SweptPoint& point, const std::string& size) {
  const auto found = point.sizes.find(size);
  return found == point.sizes.end() ? 0 : found->second;
}

std::vector<std::string> changing_sizes(const Points& points) {
  std::vector<std::string> changing;
  for (const auto& [name, value] : points.front().sizes)
    if (std::ranges::any_of(points, [&, &name = name](const SweptPoint& point) {
          return value_at(point, name) != value_at(points.front(), name);
        }))
      changing.push_back(name);
  return changing;
}

// Whether steps differ less as factors than as differences.
bool is_geometric(const std::vector<double>& values) {
  if (values.size() < 3 || values.front() <= 0) return values.size() == 2 && values[0] > 0 && values[1] >= 4 * values[0];
  const auto spread = [&](auto step) {
    double least = step(values[0], values[1]), most = least;
    for (std::size_t i = 1; i + 1 < values.size(); ++i) {
      least = std::min(least, step(values[i], values[i + 1]));
      most = std::max(most, step(values[i], values[i + 1]));
    }
    return most / least;
  };
  return spread([](double a, double b) { return b / a; }) < spread([](double a, double b) { return b - a; });
}

Curve finished(Curve curve, const Points& points) {
  std::ranges::sort(curve.points, {}, [&](std::size_t i) { return value_at(points[i], curve.size); });
  std::vector<double> values;
  for (const std::size_t i : curve.points) values.push_back(static_cast<double>(value_at(points[i], curve.size)));
  curve.geometric = is_geometric(values);
  return curve;
}

// Those of points that differ in `size` alone; `others` are the further sizes that change.
std::vector<Curve> curves_along(const std::string& size, const std::vector<std::string>& others, const Points& points) {
  std::map<SizeMap, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < points.size(); ++i) {
    SizeMap fixed;
    for (const std::string& other : others) fixed[other] = value_at(points[i], other);
    std::vector<std::size_t>& group = groups[fixed];
    // A case may say what another says: once is enough for a curve.
    if (std::ranges::none_of(group, [&](std::size_t j) { return value_at(points[j], size) == value_at(points[i], size); }))
      group.push_back(i);
  }
  std::vector<Curve> curves;
  for (auto& [fixed, group] : groups)
    if (group.size() > 1) curves.push_back(finished({.size = size, .fixed = fixed, .points = std::move(group)}, points));
  return curves;
}

std::size_t points_on(const std::vector<Curve>& curves) {
  std::size_t count = 0;
  for (const Curve& curve : curves) count += curve.points.size();
  return count;
}

// -1, 0 or 1 where `size` falls, does neither or rises all the way.
int direction_of(const std::string& size, const std::vector<std::size_t>& order, const Points& points) {
  bool rises = true, falls = true;
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint64_t before = value_at(points[order[i - 1]], size), after = value_at(points[order[i]], size);
    rises = rises && after >= before;
    falls = falls && after <= before;
  }
  return rises ? 1 : falls ? -1 : 0;
}

// A curve over the first size that has another value at each point while every other one rises or falls with it; over one that
// rises in the order in which the points were declared, if there is one.
std::vector<Curve> curve_of_all(const std::vector<std::string>& changing, const Points& points) {
  std::vector<std::size_t> declared;
  for (std::size_t i = 0; i < points.size(); ++i) declared.push_back(i);
  std::optional<Curve> found;
  for (const std::string& size : changing) {
    std::set<std::uint64_t> values;
    for (const SweptPoint& point : points) values.insert(value_at(point, size));
    if (values.size() < points.size()) continue;
    Curve curve{.size = size, .points = declared};
    curve = finished(std::move(curve), points);
    for (const std::string& other : changing)
      if (other != size) curve.along.push_back(other);
    const bool together = std::ranges::all_of(
        curve.along, [&](const std::string& other) { return direction_of(other, curve.points, points) != 0; });
    if (!together) return {};
    const bool better = !found || (curve.points == declared && found->points != declared);
    if (better) found = std::move(curve);
  }
  return found ? std::vector<Curve>{*std::move(found)} : std::vector<Curve>{};
}

}  // namespace

std::vector<Curve> curves_of(const std::vector<SweptPoint>& points) {
  if (points.size() < 2) return {};
  const std::vector<std::string> changing = changing_sizes(points);
  std::vector<Curve> best;
  for (const std::string& size : changing) {
    std::vector<std::string> others;
    std::ranges::copy_if(changing, std::back_inserter(others), [&](const std::string& other) { return other != size; });
    std::vector<Curve> curves = curves_along(size, others, points);
    const auto rank = [](const std::vector<Curve>& some) {
      // Prefers fewer curves for as many points: each shows more.
      return std::pair{points_on(some), -static_cast<std::ptrdiff_t>(some.size())};
    };
    if (!curves.empty() && (best.empty() || rank(curves) > rank(best))) best = std::move(curves);
  }
  // Two cases of many that happen to differ in one size are no curve of the sweep.
  const bool is_curve =
      points_on(best) == points.size() || std::ranges::any_of(best, [](const Curve& curve) { return curve.points.size() > 2; });
  return is_curve ? best : curve_of_all(changing, points);
}

}  // namespace aisp::evidence
