// SPDX-License-Identifier: Apache-2.0
#include "report/pictures/svg.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/layout.hpp"
#include "report/quote.hpp"

namespace aisp::report::svg {
namespace {

std::string tip_of(std::string_view tip) { return tip.empty() ? "" : "<title>" + xml_escaped(tip) + "</title>"; }

std::size_t letters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string root(const Picture& picture, std::string_view more, const std::string& content) {
  return fmt::format(
      "<svg {} viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
      more, picture.width, picture.height, picture.width, picture.height, with_micro_sign(xml_escaped(picture.title)), content);
}

}  // namespace

std::string in_page(const Picture& picture, std::string_view css_class) {
  return root(picture, fmt::format("class=\"picture{}{}\"", css_class.empty() ? "" : " ", css_class),
              with_micro_sign(picture.body));
}

std::string alone(const Picture& picture) {
  return root(picture, "xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\"",
              fmt::format("<style>\n{}</style>\n<rect class=\"back\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n{}", picture_style,
                          picture.width, picture.height, with_micro_sign(picture.body)));
}

std::string with_micro_sign(std::string_view text) { return base::for_screen(text, {.utf8 = true}); }

double width_of(std::string_view text, double font_px) { return static_cast<double>(letters(text)) * 0.6 * font_px; }

std::string shortened(const std::string& text, double width, double font_px) {
  if (width_of(text, font_px) <= width) return text;
  std::string result = text;
  while (!result.empty() && (width_of(result, font_px) + 0.6 * font_px > width || (result.back() & 0xc0) == 0x80))
    result.pop_back();
  return result + "\u2026";
}

std::string text(std::string_view css_class, double x, double y, std::string_view content, std::string_view anchor) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", css_class, x, y,
                     anchor == "start" ? "" : fmt::format(" text-anchor=\"{}\"", anchor), xml_escaped(content));
}

std::string line(std::string_view css_class, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", css_class, x1, y1, x2, y2);
}

std::string rect(std::string_view css_class, double x, double y, double width, double height, std::string_view tip) {
  return fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">{}</rect>\n", css_class, x,
                     y, width, height, tip_of(tip));
}

std::string circle(std::string_view css_class, double x, double y, double radius, std::string_view tip) {
  return fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\">{}</circle>\n", css_class, x, y, radius,
                     tip_of(tip));
}

std::string diamond(std::string_view css_class, double x, double y, double radius, std::string_view tip) {
  return fmt::format(
      "<path class=\"{0}\" d=\"M{1:.1f} {2:.1f}l{3:.1f} {3:.1f}l-{3:.1f} {3:.1f}l-{3:.1f} -{3:.1f}z\">{4}</path>\n", css_class, x,
      y - radius, radius, tip_of(tip));
}

std::string link(std::string_view href, std::string_view content) {
  if (href.empty()) return std::string{content};
  return fmt::format("<a href=\"{}\">{}</a>", xml_escaped(href), content);
}

}  // namespace aisp::report::svg
