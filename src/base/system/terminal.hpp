// SPDX-License-Identifier: Apache-2.0
// Terminals: what they can do, and what they may be shown of texts that others wrote.
#pragma once
#include <cstddef>
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

// Control characters become spaces, U+0080 to U+009F too, so that no text can move the cursor, set a title or begin a line.
std::string without_controls(std::string_view text);

// The same of a line of our own, which keeps the colours of a Painter.
std::string on_screen(std::string_view line);

// The length of what a Painter wrote at the beginning of `text`; 0 where that is no colour.
std::size_t painted(std::string_view text);

// A terminal on which a line can be drawn anew: TERM is not "dumb" and not unset.
bool can_redraw(int descriptor);

}  // namespace aisp::base
