// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/text.hpp"
#include "evidence/ceilings.hpp"
#include "report/numbers.hpp"
#include "report/pictures/plot.hpp"
#include "report/pictures/roofline.hpp"
#include "report/quote.hpp"

namespace aisp::report {
namespace {

// Not std::hypot, whose present form asks for glibc 2.35.
double distance(double dx, double dy) { return std::sqrt(dx * dx + dy * dy); }

constexpr double text_px = 12, line_px = 17, point_radius = 4.5, badge_radius = 8.5;
constexpr double roofline_left_px = 84, narrow_left_px = 66, roofline_right_px = 10, top_px = 26, roofline_axis_px = 46;

double clamped_to_drawable(double value) { return std::clamp(value, 1e-290, 1e290); }

std::string rate_label(double flops_s) {
  constexpr std::array prefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  for (; flops_s >= 999.5 && prefix + 1 < prefixes.size(); ++prefix) flops_s /= 1000;
  return fmt::format("{:.3g} {}FLOP/s", flops_s, prefixes[prefix]);
}

struct Drawn {
  const RooflinePair* pair;
  const RooflinePoint* point;
  std::size_t number;  // of the pair in this picture, from 1
};

std::vector<Drawn> drawn_of(const Roofline& roofline) {
  std::vector<Drawn> drawn;
  std::size_t number = 0;
  for (const RooflinePair& pair : roofline.pairs) {
    if (!pair.is_drawn()) continue;
    ++number;
    for (const RooflinePoint& point : pair.points)
      if (point.has_place()) drawn.push_back({&pair, &point, number});
  }
  return drawn;
}

// Near enough to the points to tell them apart, and as far as the roofs above them.
struct Ranges {
  double x_low = 1, x_high = 10, y_low = 1, y_high = 10;

  Ranges(const std::vector<Drawn>& drawn, const evidence::ResultCeilings& ceilings) {
    if (drawn.empty()) return;
    x_low = y_low = 1e300;
    x_high = y_high = 0;
    for (const Drawn& d : drawn) {
      x_low = std::min(x_low, d.point->intensity());
      x_high = std::max(x_high, d.point->intensity());
      y_low = std::min(y_low, d.point->flops_s());
      y_high = std::max(y_high, d.point->flops_s());
    }
    x_low = clamped_to_drawable(x_low / 2.2);
    x_high = clamped_to_drawable(std::max(x_high * 2.2, x_low * 12));
    // A ridge that is not far away gives the picture its shape.
    if (ceilings.memory_bytes_s > 0)
      for (const auto& [math, flops_s] : ceilings.flops_s)
        if (const double ridge = flops_s / ceilings.memory_bytes_s; ridge < x_high * 40)
          x_high = std::max(x_high, clamped_to_drawable(ridge * 2.2));
    double roof = 0;
    for (const auto& [math, flops_s] : ceilings.flops_s) roof = std::max(roof, flops_s);
    if (ceilings.memory_bytes_s > 0)
      roof = roof > 0 ? std::min(roof, ceilings.memory_bytes_s * x_high) : ceilings.memory_bytes_s * x_high;
    y_high = clamped_to_drawable(std::max(y_high, roof) * 1.7);
    y_low = clamped_to_drawable(std::min(y_low / 1.8, y_high / 12));
  }
};

class RooflineDrawing {
 public:
  RooflineDrawing(const Roofline& roofline, double width)
      : roofline_{roofline},
        drawn_{drawn_of(roofline)},
        ranges_{drawn_, roofline.ceilings},
        width_{width},
        plot_{plot_of(ranges_, width)},
        places_{plot_.area} {}

  svg::Picture picture() {
    // Each call takes places that the labels of the next ones keep off.
    for (const Drawn& d : drawn_)
      places_.keep_free({x(d) - point_radius - 1, y(d) - point_radius - 1, 2 * point_radius + 2, 2 * point_radius + 2});
    std::string body = grid();
    body += roofs();
    body += curves();
    body += arrows();
    body += points();
    body += roof_texts_ + badges();
    double bottom = plot_.bottom() + roofline_axis_px;
    body += legend(bottom);
    return {"Roofline of " + roofline_.title(), width_, bottom + 6, body};
  }

 private:
  static Plot plot_of(const Ranges& ranges, double width) {
    const double left = width < 600 ? narrow_left_px : roofline_left_px, height = width < 600 ? 300 : 400;
    const Box area{left, top_px, width - left - roofline_right_px, height};
    return {.area = area,
            .x = {true, ranges.x_low, ranges.x_high, area.x, area.x + area.width},
            .y = {true, ranges.y_low, ranges.y_high, area.y + area.height, area.y},
            .names_px = line_px};
  }
  double x(const Drawn& d) const { return plot_.x.at(d.point->intensity()); }
  double y(const Drawn& d) const { return plot_.y.at(d.point->flops_s()); }
  bool is_narrow() const { return width_ < 600; }

  std::string grid() const {
    const auto rate = [&](double tick) {
      const std::string label = rate_label(tick);
      return is_narrow() ? label.substr(0, label.size() - 6) : label;
    };
    const Box& area = plot_.area;
    return plot_.columns(plot_.x.ticks(is_narrow() ? 5 : 12, [](double tick) { return base::significant(tick, 1); })) +
           plot_.rows(plot_.y.ticks(9, rate)) +
           fmt::format("<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", area.x, area.y, area.width,
                       area.height) +
           plot_.x_title("FLOP per byte of memory") + svg::text("axis", 4, area.y - 10, "rate, FLOP/s");
  }

  std::string roofs() {
    const double bandwidth = roofline_.ceilings.memory_bytes_s;
    std::string text;
    double top = 0;
    for (const auto& [math, flops_s] : roofline_.ceilings.flops_s) {
      top = std::max(top, flops_s);
      const double ridge = bandwidth > 0 ? std::max(flops_s / bandwidth, ranges_.x_low) : ranges_.x_low;
      if (ridge >= ranges_.x_high || flops_s > ranges_.y_high) continue;
      text += roof({plot_.x.at(ridge), plot_.y.at(flops_s), plot_.right(), plot_.y.at(flops_s)});
      roof_label(plot_.x.at(ridge), plot_.right(), plot_.y.at(flops_s),
                 fmt::format("{} {}{}", math, guess_mark(evidence::source_of_flops(roofline_.ceilings, math)),
                             base::human_rate(flops_s, "FLOP")));
    }
    return bandwidth > 0 ? text + memory_roof(bandwidth, top > 0 ? top : ranges_.y_high) : text;
  }

  // Up to `top`, and only as much of it as lies in the picture.
  std::string memory_roof(double bandwidth, double top) {
    const double from = std::max(ranges_.x_low, ranges_.y_low / bandwidth),
                 to = std::min({ranges_.x_high, top / bandwidth, ranges_.y_high / bandwidth});
    if (from >= to) return {};
    const double x = plot_.x.at(from), y = plot_.y.at(from * bandwidth);
    const Segment slope{x, y, plot_.x.at(to), plot_.y.at(to * bandwidth)};
    memory_label(slope, fmt::format("memory {}{}", guess_mark(roofline_.ceilings.memory_from), base::human_rate(bandwidth, "B")));
    return roof(slope);
  }

  std::string roof(const Segment& segment) {
    places_.avoid(segment);
    return svg::line("roof", segment.x1, segment.y1, segment.x2, segment.y2);
  }

  // Above the right end of its roof, and further left, down to `left`, where points or another label have that place.
  void roof_label(double left, double right, double y, const std::string& text) {
    const double needed = svg::width_of(text) * 1.1;  // bold
    const Box at_the_end{right - needed - 6, y - line_px - 2, needed, line_px};
    const auto on_label = [&](const Box& box) {
      return std::any_of(roof_labels_.begin(), roof_labels_.end(), [&](const Box& other) { return overlap(box, other); });
    };
    const auto on_point = [&](const Box& box) {
      return std::any_of(drawn_.begin(), drawn_.end(), [&](const Drawn& d) {
        return overlap(box, {this->x(d) - point_radius, this->y(d) - point_radius, 2 * point_radius, 2 * point_radius});
      });
    };
    Box box = at_the_end;
    while ((on_label(box) || on_point(box)) && box.x > std::max(left, plot_.area.x + 6)) box.x -= needed / 4;
    if (on_label(box) || on_point(box)) {
      box = at_the_end;
      while (on_label(box) && box.x > plot_.area.x + needed) box.x -= needed / 4;
    }
    if (on_label(box)) return;
    roof_labels_.push_back(box);
    places_.keep_free(box);
    roof_texts_ += svg::text("rooflabel", box.x, box.y + text_px, text);
  }

  // Along the slope.
  void memory_label(const Segment& roof, const std::string& text) {
    const double dx = roof.x2 - roof.x1, dy = roof.y2 - roof.y1, length = distance(dx, dy);
    if (length < svg::width_of(text) * 1.3)
      return roof_label(plot_.area.x, roof.x1 + svg::width_of(text) * 1.1 + 10, roof.y1 + line_px * 2, text);
    const double degrees = std::atan2(dy, dx) * 57.29578;
    roof_texts_ += fmt::format("<g transform=\"translate({:.1f} {:.1f}) rotate({:.1f})\">{}</g>\n", roof.x1 + dx * 0.06,
                               roof.y1 + dy * 0.06, degrees, svg::text("rooflabel", 0, -7, text));
  }

  // Through the cases of a sweep, variant by variant, in the order of their intensity.
  std::string curves() const {
    std::map<std::pair<std::string, std::string>, std::vector<const Drawn*>> swept;
    for (const Drawn& d : drawn_)
      if (const std::string target = d.pair->swept_target(); !target.empty()) swept[{target, d.point->variant}].push_back(&d);
    std::string text;
    for (auto& [name, points] : swept) {
      if (points.size() < 2) continue;
      std::sort(points.begin(), points.end(), [&](const Drawn* a, const Drawn* b) { return x(*a) < x(*b); });
      std::string path;
      for (const Drawn* d : points) path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x(*d), y(*d));
      text += fmt::format("<polyline class=\"curve\" points=\"{}\"><title>{}</title></polyline>\n", path,
                          xml_escaped(name.first + " " + name.second));
    }
    return text;
  }

  // Each baseline is followed by its variants.
  std::string arrows() {
    std::string text;
    const Drawn* start = nullptr;
    for (const Drawn& d : drawn_) {
      if (d.point->role == evidence::VariantRole::baseline) start = &d;
      if (!d.point->lesson || start == nullptr) continue;
      const double dx = x(d) - x(*start), dy = y(d) - y(*start), length = distance(dx, dy);
      if (length < 4 * point_radius) continue;  // no room between the two
      const double part = 1 - (point_radius + 1) / length, ux = dx / length, uy = dy / length;
      const Segment arrow{x(*start), y(*start), x(*start) + dx * part, y(*start) + dy * part};
      places_.avoid(arrow);
      text += svg::line("arrow", arrow.x1, arrow.y1, arrow.x2, arrow.y2);
      text +=
          fmt::format("<path class=\"arrow\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", arrow.x2 - 6 * ux - 3 * uy,
                      arrow.y2 - 6 * uy + 3 * ux, arrow.x2, arrow.y2, arrow.x2 - 6 * ux + 3 * uy, arrow.y2 - 6 * uy - 3 * ux);
    }
    return text;
  }

  std::string tip_of(const Drawn& d) const {
    const RooflinePoint& p = *d.point;
    std::string text = fmt::format("{} {}: {} FLOP/byte, {}, {}", d.pair->target, p.variant, base::significant(p.intensity()),
                                   base::human_rate(p.flops_s(), "FLOP"), base::display_ms(p.median_ms));
    if (const std::string share = roof_text(*d.pair, p); !share.empty()) text += ", " + share;
    return text;
  }

  std::string points() const {
    std::string text;
    for (const Drawn& d : drawn_) {
      if (d.point->role == evidence::VariantRole::library) text += svg::diamond("library", x(d), y(d), point_radius, tip_of(d));
      else if (d.point->role == evidence::VariantRole::baseline)
        text += svg::circle("start", x(d), y(d), point_radius, tip_of(d));
      else
        text +=
            svg::circle(d.point->lesson ? "best" : "optimized", x(d), y(d), d.point->lesson ? point_radius + 1 : 3.5, tip_of(d));
    }
    return text;
  }

  // The numbers of the lessons, each as near to its point as there is room.
  std::string badges() {
    std::string leaders, text;
    for (const Drawn& d : drawn_) {
      if (!d.point->lesson) continue;
      const auto place = places_.place(x(d), y(d), 2 * badge_radius, 2 * badge_radius);
      if (!place) continue;
      const double middle_x = place->x + badge_radius, middle_y = place->y + badge_radius;
      if (distance(middle_x - x(d), middle_y - y(d)) > badge_radius + 2 * point_radius)
        leaders += svg::line("leader", x(d), y(d), middle_x, middle_y);
      text += svg::circle("best", middle_x, middle_y, badge_radius, tip_of(d));
      text += svg::text("number", middle_x, middle_y + 4, std::to_string(d.number), "middle");
    }
    return leaders + text;
  }

  std::string keys(double& y) const {
    std::string text;
    double x = 10;
    const auto next = [&](const std::string& mark, const char* words) {
      text += mark + svg::text("small", x + 10, y + 4, words);
      x += svg::width_of(words) + 26;
      if (x > width_ - 90) {
        x = 10;
        y += line_px;
      }
    };
    next(svg::circle("start", x, y, point_radius), "baseline");
    next(svg::circle("best", x, y, point_radius + 1), "lesson");
    next(svg::circle("optimized", x, y, 3.5), "other variants");
    next(svg::diamond("library", x, y, point_radius), "library");
    if (x > 10) y += line_px;
    return text;
  }

  std::string legend(double& y) const {
    y += 8;
    std::string text = keys(y);
    y += 4;
    const std::size_t in_a_row = is_narrow() ? 1 : 2;
    std::size_t count = 0;
    for (const Drawn& d : drawn_) {
      if (!d.point->lesson) continue;
      const double column = width_ / static_cast<double>(in_a_row), x = column * static_cast<double>(count % in_a_row);
      if (count > 0 && count % in_a_row == 0) y += line_px + 3;
      text += svg::circle("best", x + 10, y, badge_radius, tip_of(d)) +
              svg::text("number", x + 10, y + 4, std::to_string(d.number), "middle") +
              svg::text("name", x + 24, y + 4, svg::shortened(entry_of(d), column - 30));
      ++count;
    }
    if (count > 0) y += line_px + 6;
    for (const std::string& note : notes())
      for (const std::string& part : lines_of(note)) {
        text += svg::text("small", 4, y + 4, part);
        y += line_px;
      }
    return text;
  }

  std::string entry_of(const Drawn& d) const {
    const std::string name = fmt::format("{}{}", d.pair->target, d.pair->stale ? " (stale)" : "");
    const std::string share = roof_text(*d.pair, *d.point);
    if (is_narrow() && !share.empty()) return name + "  " + share;
    return fmt::format("{}  {}{}", name, base::human_rate(d.point->flops_s(), "FLOP"), share.empty() ? "" : ", " + share);
  }

  // Words that fit below the plot, as SVG breaks no lines.
  std::vector<std::string> lines_of(const std::string& text) const {
    std::vector<std::string> lines{""};
    for (const std::string& word : base::split(text, ' ')) {
      if (!lines.back().empty() && svg::width_of(lines.back() + " " + word) > width_ - 8) lines.emplace_back();
      lines.back() += (lines.back().empty() ? "" : " ") + word;
    }
    return lines;
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> lines;
    if (!roofline_.machine.empty()) lines.push_back(roofline_.machine);
    lines.push_back("Ceilings: " + ceilings_text(roofline_.ceilings) + (roofline_.ceilings_differ ? "; records differ" : ""));
    if (const std::string ridges = ridges_text(roofline_.ceilings); !ridges.empty()) lines.push_back("Ridge points: " + ridges);
    if (const std::string left_out = left_out_text(roofline_); !left_out.empty()) lines.push_back(left_out);
    return lines;
  }

  const Roofline& roofline_;
  std::vector<Drawn> drawn_;
  Ranges ranges_;
  double width_;
  Plot plot_;
  LabelPlaces places_;
  std::vector<Box> roof_labels_;
  std::string roof_texts_;
};

}  // namespace

svg::Picture roofline_picture(const Roofline& roofline, double width) {
  // A roof that no drawn variant stands under would only stretch the axes.
  Roofline shown = roofline;
  std::erase_if(shown.ceilings.flops_s, [&](const auto& roof) {
    return std::none_of(roofline.pairs.begin(), roofline.pairs.end(), [&](const RooflinePair& pair) {
      return pair.is_drawn() && std::any_of(pair.points.begin(), pair.points.end(), [&](const RooflinePoint& point) {
               return point.has_place() && point.cost.math == roof.first;
             });
    });
  });
  return RooflineDrawing{shown, width}.picture();
}

std::string roofline_svg(const Roofline& roofline) {
  svg::Picture picture = roofline_picture(roofline, svg::wide_px);
  constexpr double head_px = 34;
  picture.body = svg::text("heading", 4, 22, picture.title) +
                 fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", head_px, picture.body);
  picture.height += head_px;
  return svg::alone(picture);
}

}  // namespace aisp::report
