// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace aisp::base {

bool is_terminal(int descriptor);
int terminal_width(int descriptor, int otherwise = 80);  // COLUMNS, then the terminal's own

enum class Color { automatic, always, never };
std::optional<Color> parse_color(std::string_view text);  // "auto", "always", "never"

// Automatic: on a terminal, unless NO_COLOR is set to something or TERM is "dumb" or unset.
bool use_color(Color choice, int descriptor);

enum class Style { bold, dim, red, green, yellow, cyan };

class Painter {
 public:
  explicit Painter(bool on = false) : on_{on} {}
  Painter(Color choice, int descriptor) : on_{use_color(choice, descriptor)} {}
  std::string operator()(Style style, std::string_view text) const;  // `text` alone when colour is off
  bool on() const { return on_; }

 private:
  bool on_;
};

}  // namespace aisp::base
