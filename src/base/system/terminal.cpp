// SPDX-License-Identifier: Apache-2.0
#include "base/system/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/system/screen.hpp"

namespace aisp::base {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

std::string_view code(Style style) {
  switch (style) {
    case Style::bold: return "\x1b[1m";
    case Style::dim: return "\x1b[2m";
    case Style::red: return "\x1b[31m";
    case Style::green: return "\x1b[32m";
    case Style::yellow: return "\x1b[33m";
    case Style::cyan: return "\x1b[36m";
  }
  return {};
}

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

int terminal_width(int descriptor, int otherwise) {
  const std::string columns{environment("COLUMNS")};
  const int stated = std::atoi(columns.c_str());
  if (stated > 0) return stated;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return otherwise;
}

std::optional<Color> parse_color(std::string_view text) {
  if (text == "auto") return Color::automatic;
  if (text == "always") return Color::always;
  if (text == "never") return Color::never;
  return std::nullopt;
}

bool use_color(Color choice, int descriptor) {
  if (choice != Color::automatic) return choice == Color::always;
  return environment("NO_COLOR").empty() && can_redraw(descriptor);
}

std::string Painter::operator()(Style style, std::string_view text) const {
  if (!on_ || text.empty()) return std::string{text};
  return std::string{code(style)} + std::string{text} + "\x1b[0m";
}

}  // namespace aisp::base
