// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.hpp"
#include "report/roofline_axes.hpp"

namespace aisp::report {
namespace {

constexpr double width = 1120, height = 780;
constexpr Box plot{92, 84, 998, 546};
constexpr double text_px = 12;
// Wider than the usual sans-serif fonts, so that labels keep their distance in any of them.
constexpr double letter_width = 0.6 * text_px, line_height = 1.25 * text_px;
constexpr double point_radius = 5;

constexpr const char* headed = " marker-end=\"url(#roofline-head)\"";

std::string line(const char* css_class, const Segment& s, const char* more = "") {
  return fmt::format(R"(<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"{}/>)"
                     "\n",
                     css_class, s.x1, s.y1, s.x2, s.y2, more);
}

std::string text_at(const char* css_class, double x, double y, const std::string& text, const char* anchor = "start") {
  return fmt::format(R"(<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)"
                     "\n",
                     css_class, x, y, anchor, xml(text));
}

double width_of(const std::string& text) { return static_cast<double>(text.size()) * letter_width; }

const char* css_class_of(const RooflinePoint& point) {
  if (point.role == evidence::VariantRole::baseline) return "baseline";
  if (point.role == evidence::VariantRole::peer) return "peer";
  return point.best ? "best" : "optimized";
}

std::string mark(const char* css_class, double x, double y, const std::string& tip) {
  const std::string title = tip.empty() ? "" : fmt::format("<title>{}</title>", xml(tip));
  if (std::string_view{css_class} == "peer")
    return fmt::format(R"(<path class="peer" d="M{:.1f} {:.1f}l{r} {r}l-{r} {r}l-{r} -{r}z">{}</path>)"
                       "\n",
                       x, y - point_radius, title, fmt::arg("r", point_radius));
  return fmt::format(R"(<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>)"
                     "\n",
                     css_class, x, y, point_radius, title);
}

class Picture {
 public:
  explicit Picture(const Roofline& roofline) : roofline_{roofline}, axes_{roofline, plot}, places_{plot} {}

  std::string text() {
    // Each call takes places that the labels of the next ones keep off.
    claim_places();
    std::string body = grid();
    body += roofs();
    body += curves();
    body += arrows();
    body += labels();
    body += points();
    return head() + body + legend() + "</svg>\n";
  }

 private:
  struct Drawn {
    const RooflinePair* pair;
    const RooflinePoint* point;
    double x, y;
  };

  static std::string head_text(const Roofline& roofline) {
    return roofline.machine.empty() ? roofline.hardware : roofline.hardware + ": " + roofline.machine;
  }

  std::string head() const {
    std::string text = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-labelledby="roofline-title roofline-about" class="roofline">
<title id="roofline-title">Roofline of {2}</title>
<desc id="roofline-about">FLOP per byte of memory against FLOP per second, both logarithmic, of {3} with the ceilings of the machine; an arrow leads from each baseline to its best variant.</desc>
)",
        width, height, xml(roofline_.hardware), base::plural(roofline_.drawn(), "pair"));
    text += "<style>" + std::string{roofline_style} + "</style>\n";
    text +=
        R"(<defs><marker id="roofline-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>
)";
    text += fmt::format("<rect class=\"back\" width=\"{}\" height=\"{}\"/>\n", width, height);
    text += text_at("title", plot.x, 34, "Roofline of " + roofline_.hardware);
    return text + text_at("small", plot.x, 58, head_text(roofline_));
  }

  std::string grid() const {
    const double bottom = plot.y + plot.height, right = plot.x + plot.width;
    std::string text;
    for (const double value : axes_.x.ticks()) {
      const double x = axes_.x.at(value);
      text += line("grid", {x, plot.y, x, bottom}) + text_at("tick", x, bottom + 18, base::significant(value, 1), "middle");
    }
    for (const double value : axes_.y.ticks()) {
      const double y = axes_.y.at(value);
      text += line("grid", {plot.x, y, right, y}) + text_at("tick", plot.x - 8, y + 4, rate_label(value), "end");
    }
    text += fmt::format("<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", plot.x, plot.y, plot.width,
                        plot.height);
    text += text_at("axis", plot.x + plot.width / 2, bottom + 40, "arithmetic intensity, FLOP per byte of memory", "middle");
    return text + text_at("axis", plot.x - 8, plot.y - 16, "rate, FLOP/s", "end");
  }

  std::string roofs() {
    const evidence::Ceilings& ceilings = roofline_.ceilings;
    const double bandwidth = ceilings.memory_bytes_s;
    std::string text;
    double top = 0;
    for (const auto& [math, flops_s] : ceilings.flops_s) {
      const double ridge = bandwidth > 0 ? std::max(flops_s / bandwidth, axes_.x.low()) : axes_.x.low();
      text += roof({axes_.x.at(ridge), axes_.y.at(flops_s), plot.x + plot.width, axes_.y.at(flops_s)});
      text += roof_label(plot.x + plot.width, axes_.y.at(flops_s), fmt::format("{} {}", math, base::human_rate(flops_s, "FLOP")),
                         true);
      top = std::max(top, flops_s);
    }
    if (bandwidth > 0) text += memory_roof(bandwidth, top > 0 ? top : axes_.y.high());
    return text;
  }

  // Up to `top`, and only as much of it as lies in the picture.
  std::string memory_roof(double bandwidth, double top) {
    const double from = std::max(axes_.x.low(), axes_.y.low() / bandwidth), to = std::min(axes_.x.high(), top / bandwidth);
    if (from >= to) return {};
    const double x = axes_.x.at(from), y = axes_.y.at(from * bandwidth);
    return roof({x, y, axes_.x.at(to), axes_.y.at(to * bandwidth)}) +
           roof_label(x, y, "memory " + base::human_rate(bandwidth, "B"), false);
  }

  std::string roof(const Segment& segment) {
    places_.avoid(segment);
    return line("roof", segment);
  }

  std::string roof_label(double x, double y, const std::string& text, bool at_right) {
    const double needed = width_of(text) * 1.1;  // bold
    const auto place = places_.place(at_right ? x - needed / 2 : x + needed / 2, y, needed, line_height);
    return place ? text_at("rooflabel", place->x, place->y + text_px, text) : std::string{};
  }

  void claim_places() {
    for (const RooflinePair& pair : roofline_.pairs)
      for (const RooflinePoint& point : pair.points)
        if (pair.is_drawn() && point.has_place())
          drawn_.push_back({&pair, &point, axes_.x.at(point.intensity()), axes_.y.at(point.flops_s())});
    constexpr double r = point_radius + 1;
    for (const Drawn& d : drawn_) places_.keep_free({d.x - r, d.y - r, 2 * r, 2 * r});
  }

  // Through the cases of a sweep, variant by variant, in the order of their intensity.
  std::string curves() const {
    std::map<std::pair<std::string, std::string>, std::vector<const Drawn*>> swept;
    for (const Drawn& d : drawn_)
      if (const std::string target = d.pair->swept_target(); !target.empty()) swept[{target, d.point->variant}].push_back(&d);
    std::string text;
    for (auto& [name, points] : swept) {
      if (points.size() < 2) continue;
      std::sort(points.begin(), points.end(), [](const Drawn* a, const Drawn* b) { return a->x < b->x; });
      std::string path;
      for (const Drawn* d : points) path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", d->x, d->y);
      text += fmt::format("<polyline class=\"curve\" points=\"{}\"><title>{}</title></polyline>\n", path,
                          xml(name.first + " " + name.second));
    }
    return text;
  }

  // Each baseline is followed by its variants.
  std::string arrows() {
    std::string text;
    Segment arrow;
    for (const Drawn& d : drawn_) {
      if (d.point->role == evidence::VariantRole::baseline) arrow = {d.x, d.y, d.x, d.y};
      if (!d.point->best) continue;
      const double dx = d.x - arrow.x1, dy = d.y - arrow.y1, length = std::sqrt(dx * dx + dy * dy);
      if (length < 3 * point_radius) continue;  // no room between the two
      const double part = 1 - (point_radius + 1) / length;
      arrow.x2 = arrow.x1 + dx * part;
      arrow.y2 = arrow.y1 + dy * part;
      places_.avoid(arrow);
      text += line("arrow", arrow, headed);
    }
    return text;
  }

  std::string label_of(const Drawn& d) const {
    const std::string math = roofline_.ceilings.flops_s.size() > 1 ? ", " + d.point->cost.math : "";
    return fmt::format("{}{}{}", d.pair->target, math, d.pair->stale ? " (stale)" : "");
  }

  std::string labels() {
    std::string leaders, texts;
    for (const Drawn& d : drawn_) {
      if (!d.point->best) continue;
      const std::string label = label_of(d);
      const auto place = places_.place(d.x, d.y, width_of(label), line_height);
      if (!place) {
        ++without_label_;
        continue;
      }
      const double x = std::clamp(d.x, place->x, place->x + place->width),
                   y = std::clamp(d.y, place->y, place->y + place->height);
      if ((x - d.x) * (x - d.x) + (y - d.y) * (y - d.y) > 9 * point_radius * point_radius)
        leaders += line("leader", {d.x, d.y, x, y});
      texts += text_at("label", place->x, place->y + text_px, label);
    }
    return leaders + texts;
  }

  std::string points() const {
    std::string text;
    for (const Drawn& d : drawn_) {
      const RooflinePoint& p = *d.point;
      text += mark(css_class_of(p), d.x, d.y,
                   fmt::format("{} {}: {} FLOP/byte, {}, {}", d.pair->target, p.variant, base::significant(p.intensity()),
                               base::human_rate(p.flops_s(), "FLOP"), base::display_ms(p.median_ms)));
    }
    return text;
  }

  std::string legend() const {
    double x = plot.x + 8, y = plot.y + plot.height + 70;
    std::string text;
    for (const auto& [css_class, words] : {std::pair{"baseline", "baseline"}, std::pair{"best", "best variant"},
                                           std::pair{"optimized", "other variants"}, std::pair{"peer", "library (peer)"}}) {
      text += mark(css_class, x, y - 4, "") + text_at("small", x + 12, y, words);
      x += 140;
    }
    text += line("arrow", {x, y - 4, x + 26, y - 4}, headed) + text_at("small", x + 34, y, "baseline to best");
    text += line("roof", {x + 160, y - 4, x + 186, y - 4}) + text_at("small", x + 194, y, "ceiling");
    for (const std::string& note : notes())
      for (const std::string& part : lines_of(note)) text += text_at("small", plot.x, y += 16, part);
    return text;
  }

  // Words that fit below the plot, as SVG breaks no lines.
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines{""};
    for (const std::string& word : base::split(text, ' ')) {
      if (!lines.back().empty() && width_of(lines.back() + " " + word) > plot.width) lines.emplace_back();
      lines.back() += (lines.back().empty() ? "" : " ") + word;
    }
    return lines;
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> lines{"Ceilings: " + ceilings_text(roofline_.ceilings) +
                                   (roofline_.ceilings_differ ? "; earlier records had others" : "")};
    if (const std::string left_out = left_out_text(roofline_); !left_out.empty()) lines.push_back(left_out + ".");
    if (without_label_ > 0)
      lines.push_back(base::plural(without_label_, "point") + " without room for a label; --chapter draws fewer.");
    return lines;
  }

  const Roofline& roofline_;
  Axes axes_;
  LabelPlaces places_;
  std::vector<Drawn> drawn_;
  std::size_t without_label_ = 0;
};

}  // namespace

std::string roofline_svg(const Roofline& roofline) {
  // A roof that no drawn variant stands under would only stretch the axes.
  Roofline shown = roofline;
  std::erase_if(shown.ceilings.flops_s, [&](const auto& roof) {
    return std::none_of(roofline.pairs.begin(), roofline.pairs.end(), [&](const RooflinePair& pair) {
      return pair.is_drawn() && std::any_of(pair.points.begin(), pair.points.end(), [&](const RooflinePoint& point) {
               return point.has_place() && point.cost.math == roof.first;
             });
    });
  });
  return Picture{shown}.text();
}

}  // namespace aisp::report
