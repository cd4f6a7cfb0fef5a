// SPDX-License-Identifier: Apache-2.0
// Pieces of pictures. A picture stands in a page, which holds the style of all, or alone in a file. Private to report.
#pragma once
#include <string>
#include <string_view>

namespace aisp::report {

extern const char* const picture_style;

namespace svg {

struct Picture {
  std::string title;  // read out where the picture cannot be seen
  double width = 0, height = 0;
  std::string body;
};

// A page shows the wide pictures on a screen and on paper, and the narrow ones on a telephone.
inline constexpr double wide_px = 1120, narrow_px = 350;

std::string in_page(const Picture& picture, std::string_view css_class = {});
std::string alone(const Picture& picture);  // no scripts, no fonts or files from elsewhere, light and dark

// "255 us" with the sign that pictures and pages can show; files for programs and terminals have ASCII.
std::string with_micro_sign(std::string_view text);

// The greatest width that the text takes in any usual sans-serif font.
double width_of(std::string_view text, double font_px = 12);
// Without its end where it would be wider than that.
std::string shortened(const std::string& text, double width, double font_px = 12);

std::string text(std::string_view css_class, double x, double y, std::string_view content, std::string_view anchor = "start");
std::string line(std::string_view css_class, double x1, double y1, double x2, double y2);
// `tip` appears under the pointer; none without it.
std::string rect(std::string_view css_class, double x, double y, double width, double height, std::string_view tip = {});
std::string circle(std::string_view css_class, double x, double y, double radius, std::string_view tip = {});
std::string diamond(std::string_view css_class, double x, double y, double radius, std::string_view tip = {});
std::string link(std::string_view href, std::string_view content);  // content as it is where href is empty

}  // namespace svg
}  // namespace aisp::report
